"""Which tensors of a network give its logits."""

from fedhet_app.submodel.layout import Entry, Layout


def classifier_of(full: Layout, narrowest: Layout, num_classes: int) -> tuple[Entry, ...]:
    """Return weight and bias of the classifier: the last layer with a row per class at any width.

    Args:
        full: Layout of the network at width 1.
        narrowest: Layout of its narrowest slice.
        num_classes: K.

    Returns:
        The weight ``(K, F)`` and, where there is one, the bias ``(K,)``; empty for a network whose
        logits come from something else.
    """
    rows = {
        entry.name: entry
        for entry, kept in zip(full.entries, narrowest.entries, strict=True)
        if entry.is_parameter and entry.shape[:1] == kept.shape[:1] == (num_classes,)
    }
    weights = [entry for entry in rows.values() if len(entry.shape) > 1]
    if not weights:
        return ()
    layer = weights[-1].name.rpartition(".")[0]
    return tuple(entry for entry in rows.values() if entry.name.rpartition(".")[0] == layer)
