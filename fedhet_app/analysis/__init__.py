"""Statistics, tables and reports from run directories alone: nothing here trains."""
