import datasets
import huggingface_hub
import pytest

from fedhet_app.data import load_dataset
from fedhet_app.errors import FedhetError

OFFLINE = [(datasets.config, "HF_HUB_OFFLINE"), (huggingface_hub.constants, "HF_HUB_OFFLINE")]


def flags():
    return [getattr(module, name) for module, name in OFFLINE]


@pytest.fixture
def hub(monkeypatch):
    """A hub that serves ``hub.data``, or raises it, and notes what it was asked."""

    class Hub:
        data = None
        reachable = True
        asked = None

        def probe(self, _name, *, timeout):
            assert timeout <= 10
            if not self.reachable:
                raise TimeoutError("nobody answers")

        def load(self, name):
            self.asked = (name, flags())
            if isinstance(self.data, BaseException):
                raise self.data
            return self.data

    fake = Hub()
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", fake.probe)
    monkeypatch.setattr(datasets, "load_dataset", fake.load)
    for module, name in OFFLINE:
        monkeypatch.setattr(module, name, False)
    return fake


@pytest.fixture
def served(png, make_images):
    cells = [png(image) for image in make_images(4, 3, 3)]
    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
    )
    rows = datasets.Dataset.from_dict({"img": cells, "label": [0, 1, 0, 1]}, features=features)
    return datasets.DatasetDict({"train": rows, "test": rows.select([1, 2])})


def test_a_data_set_comes_from_the_hub_once(hub, served, make_images):
    hub.data = served
    dataset = load_dataset("cifar10")
    assert hub.asked == ("uoft-cs/cifar10", [False, False])
    assert (dataset.train.inputs[..., 0] == make_images(4, 3, 3)).all()
    assert dataset.test.labels.tolist() == [1, 0]
    hub.data = RuntimeError("asked again")
    assert load_dataset("cifar10").fingerprint == dataset.fingerprint


def test_out_of_reach_only_the_clients_own_cache_is_asked(hub, served):
    hub.data, hub.reachable = served, False
    assert load_dataset("hub:some/set").num_classes == 2
    assert hub.asked == ("some/set", [True, True])
    assert flags() == [False, False]


@pytest.mark.parametrize(
    "failure", [ConnectionError("far\naway"), ValueError("bad"), RuntimeError("x" * 999), OSError()]
)
def test_every_failure_says_what_to_set(hub, failure):
    hub.data = failure
    with pytest.raises(
        FedhetError, match=r"dataset = 'cifar10': .*set data-dir .*FEDHET_DATA"
    ) as e:
        load_dataset("cifar10")
    assert "\n" not in str(e.value)
    assert type(failure).__name__ in str(e.value)
    assert flags() == [False, False]


def test_a_split_that_the_hub_lacks(hub, served):
    hub.data = served
    with pytest.raises(FedhetError, match=r"test-split = 'valid': .*it has train, test"):
        load_dataset("cifar10", test_split="valid")


def test_the_true_client_fails_at_once_when_it_is_told_to_be_offline(monkeypatch, tmp_path):
    for module, name in OFFLINE:
        monkeypatch.setattr(module, name, True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "none")
    with pytest.raises(FedhetError, match=r"dataset = 'hub:no-such-owner/no-such-set'"):
        load_dataset("hub:no-such-owner/no-such-set")
