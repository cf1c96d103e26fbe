"""cudal2.patch on CUDA: patched layers run tuned kernels, and a model's results stay what they were."""

from __future__ import annotations

import copy

import pytest
import torch
from products import half, rand
from torch import nn

import cudal2

pytestmark = pytest.mark.usefixtures("tuned")
CLOSE = {"rtol": 2e-2, "atol": 5e-2}


def model() -> nn.Module:
    layers = nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64, bias=False), nn.LayerNorm(64)
    return nn.Sequential(*layers).cuda().half()


def test_results_and_path() -> None:
    network, x = model(), half(2, 32, 64)
    with torch.no_grad():
        expected = network(x)
        with cudal2.patch(network):
            result = network(x)
            assert cudal2.last_path() != "torch"
        torch.testing.assert_close(result, expected, **CLOSE)
        assert torch.equal(network(x), expected)
        assert cudal2.last_path() == "torch"


def test_training_steps() -> None:
    plain = model()
    patched = copy.deepcopy(plain)
    cudal2.patch(patched)
    for network in (plain, patched):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = network(half(64, 64)).float().square().mean()
            assert (cudal2.last_path() != "torch") == (network is patched)
            loss.backward()
            optimizer.step()
    for ours, torchs in zip(patched.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, torchs, **CLOSE)


def test_autocast_training() -> None:
    """pytorch#47906, with float32 weights."""
    network, x = model().float(), rand(64, 64, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16), cudal2.patch(network):
        loss = network[:3](x).float().square().mean()
        assert cudal2.last_path() != "torch"
    loss.backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in network[:3].parameters())


def test_weights_loaded_replaced_and_moved() -> None:
    layer, x = nn.Linear(64, 64).cuda().half(), half(64, 64)
    with cudal2.patch(layer), torch.no_grad():
        layer(x)
        layer.load_state_dict({"weight": torch.eye(64), "bias": torch.zeros(64)})
        assert torch.equal(layer(x), x)
        layer.weight = nn.Parameter(2 * torch.eye(64, device="cuda").half())
        assert torch.equal(layer(x), 2 * x)
        layer.cpu().cuda()
        assert torch.equal(layer(x), 2 * x)
        assert cudal2.last_path() != "torch"


def test_a_patched_model_in_a_cuda_graph() -> None:
    network, x = model(), half(64, 64)
    with torch.no_grad(), cudal2.patch(network):
        network(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = network(x)
        for _ in range(3):
            x.normal_()
            network[0].weight.mul_(1.5)
            graph.replay()
            torch.testing.assert_close(result, network(x), **CLOSE)


def test_an_encoder_layer() -> None:
    """nn.MultiheadAttention uses its layers' weights by itself; the feed-forward layers are covered."""
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True).cuda().half()
    x = half(2, 32, 64)
    for mode in (layer.train, layer.eval):
        mode()
        expected = layer(x)
        with cudal2.patch(layer):
            torch.testing.assert_close(layer(x), expected, **CLOSE)
