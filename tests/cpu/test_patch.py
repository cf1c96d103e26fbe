"""cudal2.patch: per instance, exact undo, nesting; nothing of a model changes but its linear layers' forward."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
import weakref

import pytest
import torch
from products import rand
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import cudal2
from cudal2.patching import _Forward


class Model(nn.Module):
    """Two layers, one of them used twice, a norm between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.blocks = nn.ModuleList([nn.Linear(8, 8, bias=False), self.first])

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x))
        for block in self.blocks:
            x = block(x)
        return x


class OwnForward(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


class NoOwnForward(nn.Linear):
    pass


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The weights that cudal2.linear was called with."""
    seen: list[Tensor] = []

    def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        seen.append(weight)
        return cudal2.linear(input, weight, bias)

    monkeypatch.setattr("cudal2.patching.linear", linear)
    return seen


def attributes(model: nn.Module) -> list[list[tuple[str, int]]]:
    """Each module's own attributes, in order, by identity."""
    return [[(name, id(value)) for name, value in module.__dict__.items()] for module in model.modules()]


def test_every_linear_layer_and_nothing_else(model: Model, calls: list[Tensor]) -> None:
    x = rand(3, 8)
    expected = model(x)
    handle = cudal2.patch(model)
    assert repr(handle) == "<cudal2.Patch: 2 nn.Linear layers, active>"
    assert torch.equal(model(x), expected)
    assert [id(weight) for weight in calls] == [
        id(model.first.weight),
        id(model.blocks[0].weight),
        id(model.first.weight),
    ]
    assert "forward" not in model.__dict__
    assert "forward" not in model.norm.__dict__


def test_undo_is_exact(model: Model, calls: list[Tensor]) -> None:
    before = attributes(model)
    handle = cudal2.patch(model)
    assert attributes(model) != before
    handle.undo()
    assert attributes(model) == before
    handle.undo()
    assert attributes(model) == before
    assert repr(handle) == "<cudal2.Patch: 2 nn.Linear layers, undone>"
    model(rand(3, 8))
    assert calls == []


def test_as_context_manager(model: Model, calls: list[Tensor]) -> None:
    before = attributes(model)
    with cudal2.patch(model) as handle:
        model(rand(3, 8))
        assert "active" in repr(handle)
    assert len(calls) == 3
    assert attributes(model) == before


def test_an_exception_passes_and_the_patch_is_undone(model: Model) -> None:
    before = attributes(model)
    with pytest.raises(ZeroDivisionError), cudal2.patch(model):
        raise ZeroDivisionError
    assert attributes(model) == before


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)], ids=str)
def test_nested_patches_may_be_undone_in_any_order(order: tuple[int, ...], model: Model, calls: list[Tensor]) -> None:
    before = attributes(model)
    handles = [cudal2.patch(model), cudal2.patch(model.first), cudal2.patch(model)]
    for index in order[:-1]:
        handles[index].undo()
        handles[index].undo()
        calls.clear()
        model(rand(3, 8))
        assert model.first.weight is calls[0]
    handles[order[-1]].undo()
    assert attributes(model) == before
    calls.clear()
    model(rand(3, 8))
    assert calls == []


def test_other_models_are_untouched(model: Model, calls: list[Tensor]) -> None:
    other = Model()
    before, forward = attributes(other), nn.Linear.forward
    with cudal2.patch(model):
        assert attributes(other) == before
        assert nn.Linear.forward is forward
        assert type(model.first) is nn.Linear
        other(rand(3, 8))
        assert calls == []


def test_the_model_is_itself_a_linear_layer(calls: list[Tensor]) -> None:
    layer = nn.Linear(8, 4)
    x = rand(3, 8)
    expected = layer(x)
    with cudal2.patch(layer) as handle:
        assert "1 nn.Linear" in repr(handle)
        assert torch.equal(layer(x), expected)
    assert len(calls) == 1
    assert "forward" not in layer.__dict__


def test_a_layer_with_a_forward_of_its_own_is_left_alone(calls: list[Tensor]) -> None:
    by_instance = nn.Linear(8, 8)
    own = by_instance.forward = lambda input: input * 2  # type: ignore[method-assign]
    model = nn.Sequential(OwnForward(8, 8), by_instance, NoOwnForward(8, 8))
    before, x = attributes(model), rand(3, 8)
    expected = model(x)
    with cudal2.patch(model) as handle:
        assert "1 nn.Linear" in repr(handle)
        assert by_instance.__dict__["forward"] is own
        assert torch.equal(model(x), expected)
    assert [id(weight) for weight in calls] == [id(model[2].weight)]
    assert attributes(model) == before


def test_a_forward_that_was_wrapped_meanwhile_stays(model: Model, calls: list[Tensor]) -> None:
    handle = cudal2.patch(model)
    inner = model.first.forward
    wrapper = model.first.forward = lambda input: inner(input) + 1  # type: ignore[method-assign]
    x = rand(3, 8)
    expected = model(x)
    handle.undo()
    calls.clear()
    assert model.first.__dict__["forward"] is wrapper
    assert torch.equal(model(x), expected)
    assert calls == []


def test_state_dict_and_parameters(model: Model) -> None:
    def contents() -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
        tensors = [(name, tensor.data_ptr()) for name, tensor in model.state_dict().items()]
        return tensors, [(name, id(parameter)) for name, parameter in model.named_parameters()]

    before = contents()
    with cudal2.patch(model):
        assert contents() == before
        fresh = Model()
        model.load_state_dict(fresh.state_dict())
        assert torch.equal(model(torch.ones(1, 8)), fresh(torch.ones(1, 8)))
    assert contents() == before


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_a_copy_is_an_ordinary_model(how: str, model: Model, calls: list[Tensor]) -> None:
    x = rand(3, 8)
    with cudal2.patch(model) as handle:
        if how == "deepcopy":
            duplicate = copy.deepcopy(model)
        elif how == "pickle":
            duplicate = pickle.loads(pickle.dumps(model))
        else:
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            duplicate = torch.load(file, weights_only=False)
        expected = model(x)
        calls.clear()
        with torch.no_grad():
            model.first.weight.zero_()
        assert torch.equal(duplicate(x), expected)
        assert calls == []
        assert not any(isinstance(module.__dict__.get("forward"), _Forward) for module in duplicate.modules())
        assert any(isinstance(module.__dict__.get("forward"), _Forward) for module in model.modules())
    before = attributes(duplicate)
    with cudal2.patch(duplicate) as second:
        assert repr(second).replace("active", "undone") == repr(handle)
        duplicate(x)
        assert duplicate.first.weight is calls[0]
    assert attributes(duplicate) == before


def test_a_shallow_copy_that_is_patched_uses_its_own_weights(model: Model) -> None:
    with cudal2.patch(model):
        duplicate = copy.copy(model.first)
        duplicate._parameters = {name: nn.Parameter(torch.zeros_like(p)) for name, p in model.first._parameters.items()}
        with cudal2.patch(duplicate):
            assert not duplicate(rand(3, 8)).any()


def test_weights_are_read_at_each_call(model: Model) -> None:
    x, layer = rand(3, 8), model.first
    with cudal2.patch(model), torch.no_grad():
        layer.weight.mul_(2)
        layer.bias.zero_()
        assert torch.equal(layer(x), x @ layer.weight.t())
        layer.weight = nn.Parameter(torch.eye(8))
        assert torch.equal(layer(x), x)
        layer.weight.data = 2 * torch.eye(8)
        assert torch.equal(layer(x), 2 * x)
        layer.bias = None
        assert torch.equal(layer(x), 2 * x)


def test_tied_weights_stay_tied() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    with cudal2.patch(model):
        assert model[1].weight is model[0].weight
        model(rand(3, 8)).sum().backward()
        assert model[0].weight.grad is model[1].weight.grad


def test_gradients(model: Model) -> None:
    x = rand(3, 8)
    model(x).square().sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    with cudal2.patch(model):
        model(x).square().sum().backward()
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        assert torch.equal(parameter.grad, grad)


def test_hooks_run(model: Model) -> None:
    order: list[str] = []
    model.first.register_forward_pre_hook(lambda module, args: order.append("before"))
    model.first.register_forward_hook(lambda module, args, output: order.append("after"))
    with cudal2.patch(model):
        model.first(rand(3, 8))
    model.first(rand(3, 8))
    assert order == ["before", "after"] * 2


class Double(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


@pytest.mark.parametrize("when", ["before", "while"])
def test_parametrizations(when: str, model: Model, calls: list[Tensor]) -> None:
    x = rand(3, 8)
    if when == "before":
        parametrize.register_parametrization(model.first, "weight", Double())
    with cudal2.patch(model):
        if when == "while":
            parametrize.register_parametrization(model.first, "weight", Double())
        result = model.first(x)
        assert len(calls) == 1
        torch.testing.assert_close(result, x @ model.first.weight.t() + model.first.bias)
        parametrize.remove_parametrizations(model.first, "weight")
        torch.testing.assert_close(model.first(x), result)
    assert type(model.first) is nn.Linear
    assert "forward" not in model.first.__dict__


def test_weight_norm(model: Model) -> None:
    layer, x = parametrizations.weight_norm(model.first), rand(3, 8)
    expected = layer(x)
    with cudal2.patch(model):
        assert torch.equal(layer(x), expected)


def test_a_lazy_layer(calls: list[Tensor]) -> None:
    layer = nn.LazyLinear(4)
    with cudal2.patch(layer):
        assert layer(rand(3, 8)).shape == (3, 4)
        assert layer.weight is calls[0]
    assert "forward" not in layer.__dict__


def test_modes_and_moves(model: Model) -> None:
    with cudal2.patch(model):
        assert not model.eval().training
        assert model.to(torch.float64).first.weight.dtype == torch.float64
        assert model(rand(3, 8).double()).dtype == torch.float64
        assert model.to("meta")(torch.empty(3, 8, dtype=torch.float64, device="meta")).shape == (3, 8)


def test_functional_call_uses_the_parameters_it_is_given(model: Model) -> None:
    zeros = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    with cudal2.patch(model):
        assert not torch.func.functional_call(model, zeros, rand(3, 8)).any()


def test_a_patched_model_is_freed_at_once() -> None:
    model = Model()
    handle = cudal2.patch(model)
    weight = weakref.ref(model.blocks[0].weight)
    gc.disable()
    try:
        del model
        assert weight() is None
    finally:
        gc.enable()
    handle.undo()


def test_multihead_attention_works_and_is_not_covered(calls: list[Tensor]) -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x = rand(2, 3, 8)
    expected = attention(x, x, x)[0]
    with cudal2.patch(attention):
        assert torch.equal(attention(x, x, x)[0], expected)
    assert calls == []


@pytest.mark.parametrize("model", [None, torch.ones(2), nn.Linear], ids=["None", "tensor", "class"])
def test_what_is_no_module(model: object) -> None:
    with pytest.raises(TypeError, match=r"expected an nn\.Module"):
        cudal2.patch(model)  # type: ignore[arg-type]


def test_patches_come_and_go_in_threads() -> None:
    """Each patch undoes what it did and no more, whichever thread another is in."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(20)))
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(200):
                with cudal2.patch(model):
                    pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert all("forward" not in layer.__dict__ for layer in model)
