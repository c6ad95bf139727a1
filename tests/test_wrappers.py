"""Anchored and folded networks inside what people put around networks: each wrapper one test."""

import copy
import gc
from pathlib import Path

import pytest
import torch
from conftest import small_cnn, stir
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

import killick
from killick.core.references import take


def stirred() -> killick.Anchored:
    return stir(killick.anchor(small_cnn())).set_references(torch.rand(3, 3, 8, 8)).eval()


def both() -> list[nn.Module]:
    model = stirred()
    return [model, killick.fold(model), killick.fold(model, k=2)]


KINDS = ["anchored", "folded", "folded for two"]


@pytest.mark.parametrize("kind", range(3), ids=KINDS)
def test_torch_compile_gives_the_same_logits_in_one_graph(kind):
    model, x = both()[kind], torch.rand(4, 3, 8, 8)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_close(compiled(x), model(x))


def test_a_compiled_training_step_gives_the_same_loss_and_gradient_in_one_graph():
    model = stirred().train()
    masking = killick.ReferenceMasking(alpha=0.5, target="uniform")
    x, labels = torch.rand(6, 3, 8, 8), torch.arange(6) % 5
    draw = masking.draw(6, "cpu")

    def step(x, labels, draw):
        return nn.functional.cross_entropy(*masking.forward(model, x, labels, draw))

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    expected = step(x, labels, draw)
    gradients = torch.autograd.grad(expected, list(model.parameters()))
    for _ in range(3):
        found = compiled(x, labels, draw)
    assert_close(found, expected)
    assert_close(torch.autograd.grad(found, list(model.parameters())), gradients)
    assert model.recent.count == 4 * 6  # the eager step and the compiled ones alike


def test_a_compiled_model_is_settled_when_it_is_switched_to_eval():
    model = stirred().train()
    plain = copy.deepcopy(model)
    plain.recent = killick.core.batchnorm.RecentPairs()
    compiled = torch.compile(model, backend="aot_eager")
    x, mask = torch.rand(6, 3, 8, 8), torch.tensor(True)
    for judged in (compiled, plain):
        judged(x, x.flip(0), mask)
        judged.eval()
    assert_close(model.net[1].running_mean, plain.net[1].running_mean)
    assert_close(compiled(x), plain(x))


@pytest.mark.slow
@pytest.mark.parametrize("kind", range(3), ids=KINDS)
def test_inductor_gives_the_same_logits(kind):
    model, x = both()[kind], torch.rand(4, 3, 8, 8)
    assert_close(torch.compile(model)(x), model(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", range(3), ids=KINDS)
def test_torch_export_keeps_the_batch_dynamic(kind):
    model, x = both()[kind], torch.rand(4, 3, 8, 8)
    batch = torch.export.Dim("batch", min=2, max=512)
    exported = torch.export.export(model, (x,), dynamic_shapes={"x": {0: batch}}).module()
    for n in (2, 7):
        images = torch.rand(n, 3, 8, 8)
        assert_close(exported(images), model(images))


@pytest.mark.parametrize("kind", range(3), ids=KINDS)
def test_bfloat16_autocast_stays_close(kind):
    model, x = both()[kind], torch.rand(4, 3, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(x)
    assert_close(found.float(), model(x), atol=0.05, rtol=0.05)  # bfloat16 has 8 bits


@pytest.mark.parametrize("kind", range(3), ids=KINDS)
def test_channels_last_gives_the_same_logits(kind):
    model, x = both()[kind], torch.rand(4, 3, 8, 8)
    turned = copy.deepcopy(model).to(memory_format=torch.channels_last)
    images = x.to(memory_format=torch.channels_last)
    assert_close(turned(images), model(x), atol=1e-5, rtol=1e-5)


def test_pairs_of_channels_last_images_are_channels_last():
    x = torch.rand(4, 3, 8, 8).to(memory_format=torch.channels_last)
    for scope in ("batch", "sample"):
        draw = killick.ReferenceMasking(alpha=0.5, target="label", scope=scope).draw(4, "cpu")
        pairs = killick.pair(x, take(x, draw.chosen), draw.masked)
        assert pairs.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("kind", range(3), ids=KINDS)
def test_a_deep_copy_is_independent_and_equal(kind):
    model, x = both()[kind], torch.rand(4, 3, 8, 8)
    again = copy.deepcopy(model)
    assert_close(again(x), model(x))
    stir(again)
    assert (again(x) - model(x)).abs().max() > 1e-3


@pytest.mark.parametrize("kind", range(3), ids=KINDS)
def test_a_state_dict_carries_everything(kind):
    model, x = both()[kind], torch.rand(4, 3, 8, 8)
    again = stir(copy.deepcopy(model))
    again.load_state_dict(copy.deepcopy(model.state_dict()))
    assert_close(again(x), model(x))


def test_a_folded_network_can_be_trained_further():
    folded = killick.fold(stirred()).train()
    folded(torch.rand(4, 3, 8, 8)).sum().backward()
    assert folded.net[0].layer.weight.grad.abs().sum() > 0


def test_folding_leaves_the_model_as_it_was_and_settles_it():
    model = stirred().train()
    x = torch.rand(4, 3, 8, 8)
    model(x, x.flip(0), True)
    before = [m.training for m in model.modules()]
    folded = killick.fold(model)
    assert [m.training for m in model.modules()] == before
    assert not folded.training
    assert_close(folded(x), model.eval()(x), atol=1e-5, rtol=1e-5)


def test_fold_takes_references_of_its_own_and_refuses_what_cannot_serve():
    model, x = stirred(), torch.rand(4, 3, 8, 8)
    own = torch.rand(1, 3, 8, 8)
    folded = killick.fold(model, references=own)
    assert_close(folded(x), model(x, own.expand_as(x)), atol=1e-5, rtol=1e-5)
    with pytest.raises(killick.errors.ReferencesError, match="expected 4 stored .*, found 3"):
        killick.fold(model, k=4)
    with pytest.raises(killick.errors.ShapeError, match="references as"):
        killick.fold(model, references=own[0])
    with pytest.raises(
        killick.errors.OptionError, match="expected an anchored model, found Linear"
    ):
        killick.fold(nn.Linear(2, 2))


def test_a_folded_network_refuses_what_its_model_refuses():
    normalizing = killick.anchor(small_cnn(), normalize=((0.5,) * 3, (0.5,) * 3))
    normalizing.set_references(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(killick.errors.DtypeError, match="this model normalizes by itself"):
        killick.fold(normalizing)(torch.rand(2, 3, 8, 8))
    folded = killick.fold(stirred())
    with pytest.raises(killick.errors.DtypeError, match="no normalize="):
        folded(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    for shape in ((2, 1, 8, 8), (2, 3, 9, 8), (3, 8, 8)):
        with pytest.raises(killick.errors.ShapeError, match=r"\(n, 3, 8, 8\), found .* one size"):
            folded(torch.zeros(shape))
    for options in ({"k": 0}, {"k": -1}, {"k": 2, "references": torch.rand(5, 3, 8, 8)}):
        with pytest.raises(
            killick.errors.OptionError, match="expected k of at least 1, and no ref"
        ):
            killick.fold(stirred(), **options)


@pytest.fixture(scope="module")
def in_two_processes(tmp_path_factory):
    """What two processes on this machine did, by name; they are started once, for ten seconds."""
    folder = tmp_path_factory.mktemp("ranks")
    problem = None
    try:
        multiprocessing.spawn(_started, (folder,), nprocs=2)
    except Exception as raised:  # by one of them; the other was ended
        problem = raised

    def check(name: str) -> Path:
        for rank in (0, 1):
            if not (folder / f"{name}-{rank}").exists():
                raise AssertionError(f"not done by process {rank}") from problem
        return folder

    return check


def _started(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    for name, function, *args in (
        ("anchored", _train_under_ddp, str(folder / "model")),
        ("folded", _train_folded_under_ddp),
        ("shared", _compare_masks, "shared"),
        ("own", _compare_masks, "own"),
    ):
        store = distributed.FileStore(str(folder / f"store-{name}"), 2)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
        function(rank, *args)
        gc.collect()  # DDP's threads end before the group does
        distributed.barrier()
        distributed.destroy_process_group()
        (folder / f"{name}-{rank}").touch()


def gathered(value: torch.Tensor) -> list[torch.Tensor]:
    parts = [torch.empty_like(value) for _ in range(2)]
    distributed.all_gather(parts, value.contiguous())
    return parts


def _train_under_ddp(rank: int, folder: str) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(killick.anchor(small_cnn()))
    masking = killick.ReferenceMasking(alpha=0.5, target="uniform")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)  # other data and references on each rank
    x = torch.rand(8, 3, 8, 8, generator=generator)
    for _ in range(4):
        optimizer.zero_grad()
        masking.loss(model, x, torch.arange(8) % 5, generator=generator).backward()
        optimizer.step()
    for parameter in model.parameters():
        first, second = gathered(parameter.detach())
        assert torch.equal(first, second)
    model.eval()  # each from its own pairs, without waiting
    model.module.set_references(x[:1])
    with torch.no_grad():
        model(x)
    first, second = gathered(model.module.net[1].running_mean)
    assert torch.equal(first, second)  # DDP itself sends rank 0's buffers
    killick.settle(model, [x])
    first, second = gathered(model.module.net[1].running_mean)
    assert torch.equal(first, second)
    own = model.module.net[0](killick.pair(x, x)).mean(
        (0, 2, 3)
    )  # sums do not depend on references
    assert not torch.equal(*gathered(own))
    if rank == 0:  # alone, as people do: nothing may wait for the other
        model.module.train()
        model.module.eval()
        assert not any(
            "module." in key for key in killick.core.anchored.anchored_in(model).state_dict()
        )
        killick.save(model, folder)


@pytest.mark.slow
def test_ddp_trains_keeps_ranks_equal_and_saves_clean_keys(in_two_processes):
    folder = in_two_processes("anchored")
    again = killick.load(folder / "model", net=small_cnn())
    assert "net.0.weight" in again.state_dict()


def _train_folded_under_ddp(rank: int) -> None:
    torch.manual_seed(0)
    folded = killick.fold(stirred()).train()
    model = DistributedDataParallel(folded)
    generator = torch.Generator().manual_seed(rank)
    model(torch.rand(4, 3, 8, 8, generator=generator)).sum().backward()
    first, second = gathered(folded.net[0].layer.weight.grad)
    assert torch.equal(first, second)
    assert first.abs().sum() > 0


@pytest.mark.slow
def test_a_folded_network_trains_under_ddp(in_two_processes):
    in_two_processes("folded")


def _compare_masks(rank: int, ranks: str) -> None:
    masking = killick.ReferenceMasking(alpha=0.5, target="label", ranks=ranks)
    generator = torch.Generator().manual_seed(rank)
    masks = torch.stack([masking.draw(4, "cpu", generator=generator).masked for _ in range(64)])
    first, second = gathered(masks.int())
    assert torch.equal(first, second) == (ranks == "shared")
    assert 0 < first.float().mean() < 1


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["shared", "own"])
def test_ranks_mask_the_same_steps_or_their_own(ranks, in_two_processes):
    in_two_processes(ranks)


def test_references_are_taken_one_by_one_so_that_memory_does_not_grow_with_k():
    model, x, sizes = stirred(), torch.rand(4, 3, 8, 8), []
    model.net.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    killick.predict(model, x, protocol="marginal", k=3)
    assert sizes == [4, 4, 4]


def test_predict_sees_through_wrappers():
    model, x = stirred(), torch.rand(4, 3, 8, 8)
    compiled = torch.compile(model, backend="aot_eager")
    found = killick.predict(compiled, x, protocol="marginal", k=3)
    assert_close(found.logits, killick.predict(model, x, protocol="marginal", k=3).logits)
