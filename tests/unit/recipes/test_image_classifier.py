from __future__ import annotations

import pytest
import torch
from sklearn import datasets  # type: ignore[import-untyped]

from rubato.recipes.image_classifier import Config, Digits, load_digits, network


def test_training_and_test_images_share_nothing_and_are_all() -> None:
    train, test = Digits(train=True), Digits(train=False)
    assert (len(train), len(test)) == (1437, 360)
    assert sorted(set(test.labels.tolist())) == list(range(10))
    assert torch.equal(Digits(train=False).images, test.images)


def test_training_images_are_shifted_by_up_to_a_pixel_and_test_images_are_not() -> None:
    train, test = Digits(train=True), Digits(train=False)
    torch.manual_seed(0)
    shifts = {train[0][0].numpy().tobytes() for _ in range(100)}
    assert len(shifts) == 9
    image, label = test[3]
    assert image.shape == (1, 8, 8)
    assert torch.equal(image, test.images[3])
    assert 0 <= int(label) <= 9


def test_the_network_has_what_makes_bits_hard_to_keep() -> None:
    kinds = {type(module).__name__ for module in network(4, 0.3).modules()}
    assert {"BatchNorm2d", "Dropout", "Conv2d"} <= kinds
    assert network(4, 0.3)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_an_unknown_setting_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="epoch"):
        Config(epoch=3)  # type: ignore[call-arg]


def test_the_digits_are_scikit_learns() -> None:
    theirs = datasets.load_digits()
    mine = load_digits()
    assert torch.equal(mine[:, :-1], torch.tensor(theirs.data, dtype=torch.float32))
    assert torch.equal(mine[:, -1], torch.tensor(theirs.target, dtype=torch.float32))


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install scikit-learn"):
        load_digits()
