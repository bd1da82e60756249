import numpy as np
import pytest

from fedhet_app.evaluation import Evaluation, balanced

MEASURED = Evaluation(
    loss=0.5,
    group_correct=np.array([[3, 1, 0]]),
    group_count=np.array([[4, 2, 0]]),
)


def test_a_label_mix_weighs_the_classes_by_pencil():
    # Accuracies 3/4 and 1/2: 0.75 alone, then (1 * 0.75 + 3 * 0.5) / 4.
    assert MEASURED.on_mix(np.array([[7, 0, 0], [1, 3, 0]])).tolist() == [0.75, 0.5625]


def test_a_class_without_a_test_example_does_not_count_as_wrong():
    on_mix = MEASURED.on_mix(np.array([[1, 3, 9], [0, 0, 5]]))
    assert on_mix.tolist() == pytest.approx([0.5625, 4 / 6])


def test_balanced_accuracy_is_the_mean_recall_of_classes_that_occur():
    # Recalls 3/4 and 1/2, the third class does not occur; one right of one; nothing to measure.
    correct = np.array([[3, 1, 0], [0, 0, 1], [0, 0, 0]])
    count = np.array([[4, 2, 0], [0, 0, 1], [0, 0, 0]])
    assert balanced(correct, count).tolist() == [0.625, 1.0, 0.0]
