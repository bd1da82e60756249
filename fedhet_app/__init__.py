"""fedhet: federated learning when clients differ, as a Flower application."""

__version__ = "0.1.0"
