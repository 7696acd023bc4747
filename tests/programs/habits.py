"""What people do in training programs, one function each; `config.habit` names it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from pace import brake
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import rubato
from rubato.engine import flat

flat.BUCKET_BYTES = 1024  # these models are small, and are to be exchanged in pieces as large ones are

BRAKE_S = 2.5
"""Between two steps, while a test holds the program and a quarter of them is done: it has a minute for its faults."""

X = torch.randn(250, 6, generator=torch.Generator().manual_seed(1))
Y = (X.sum(1) > 0).long()
DATA = torch.utils.data.TensorDataset(X, Y)
"""250 samples: the tail of an epoch is uneven."""


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 19), nn.BatchNorm1d(19), nn.ReLU(), nn.Dropout(0.2), nn.Linear(19, 2))


def steps(run: rubato.Run, some: Iterable[rubato.Step] | None = None) -> Iterator[rubato.Step]:
    for step in run.steps() if some is None else some:
        yield step
        brake(run.config.get("hold"), BRAKE_S if step.index > run.config["steps"] // 4 else 0.05)


def fit(run: rubato.Run, model: nn.Module, update: Callable[[rubato.Step], Any], **autocast: Any) -> None:
    """The usual loop; `update` is all that comes after the inner one."""
    for step in steps(run):
        for x, y in step:
            with torch.autocast("cpu", enabled=bool(autocast), **autocast):
                out = model(x)
            step.backward(F.cross_entropy(out.float(), y))
        update(step)


def bf16(run: rubato.Run) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run.log(bits=torch.finfo(nn.Linear(6, 2)(X[:2]).dtype).bits)
    fit(run, model, lambda step: optimizer.step(), dtype=torch.bfloat16)


def fp16_scaler(run: rubato.Run) -> None:
    """The first scales are too large for half precision: those steps are skipped, on every worker."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=5)
    run.prepare(model=model, optimizer=optimizer, scaler=scaler, dataset=DATA)

    def update(step: rubato.Step) -> None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        run.log(skipped=scaler.get_scale() < before, scale=scaler.get_scale())

    fit(run, model, update, dtype=torch.float16)


def clipping(run: rubato.Run) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)

    def update(step: rubato.Step) -> None:
        run.log(norm=nn.utils.clip_grad_norm_(model.parameters(), 0.05))
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()

    fit(run, model, update)


def schedule(make: Callable[[torch.optim.Optimizer], Any], optimizer: type = torch.optim.AdamW) -> Any:
    def habit(run: rubato.Run) -> None:
        model = network()
        weights = optimizer(model.parameters(), lr=0.01)
        scheduler = make(weights)
        run.prepare(model=model, optimizer=weights, scheduler=scheduler, dataset=DATA)

        def update(step: rubato.Step) -> None:
            weights.step()
            scheduler.step()
            run.log(lr=weights.param_groups[0]["lr"])

        fit(run, model, update)

    return habit


def warm_then_cosine(optimizer: torch.optim.Optimizer) -> Any:
    warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=6)
    return lr_scheduler.SequentialLR(optimizer, [warm, lr_scheduler.CosineAnnealingLR(optimizer, 30)], milestones=[6])


def plateau(run: rubato.Run) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.05)
    run.prepare(model=model, optimizer=optimizer, scheduler=scheduler, dataset=DATA)

    def update(step: rubato.Step) -> None:
        optimizer.step()
        if step.every(3):
            scheduler.step(run.evaluate(DATA, lambda x, y: F.cross_entropy(model(x), y), batch=37))
        run.log(lr=optimizer.param_groups[0]["lr"])

    fit(run, model, update)


def ema(run: rubato.Run) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    run.register("average", average)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)

    def update(step: rubato.Step) -> None:
        optimizer.step()
        average.update_parameters(model)
        # The result's digest is of model and optimizer; what the average learned shows in the rows.
        run.log(average=sum(tensor.double().sum() for tensor in average.parameters()), n=average.n_averaged)
        if step.every(4):
            run.log(quality=run.evaluate(DATA, lambda x, y: F.cross_entropy(average(x), y), batch=37))

    fit(run, model, update)


def gradients_before(run: rubato.Run) -> None:
    """Gradients of the step before, kept as they are, as a plain loop may: nothing is copied."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)

    def update(step: rubato.Step) -> None:
        now = [parameter.grad for parameter in model.parameters()]
        before = run.state.get("before", now)
        run.log(change=sum((one - other).double().square().sum() for one, other in zip(now, before, strict=True)))
        for parameter, one, other in zip(model.parameters(), now, before, strict=True):
            parameter.grad = one + 0.5 * (one - other)
        run.state["before"] = now
        optimizer.step()

    fit(run, model, update)


def two_optimizers(run: rubato.Run) -> None:
    models = {"body": nn.Sequential(nn.Linear(6, 19), nn.BatchNorm1d(19), nn.ReLU()), "head": nn.Linear(19, 2)}
    optimizers = {
        "body": torch.optim.AdamW(models["body"].parameters(), lr=0.01, amsgrad=True),
        "head": torch.optim.SGD(models["head"].parameters(), lr=0.1, momentum=0.9),
    }
    run.prepare(model=models, optimizer=optimizers, dataset=DATA)

    def update(step: rubato.Step) -> None:
        optimizers["body"].step()
        if step.every(2):
            optimizers["head"].step()

    fit(run, nn.Sequential(*models.values()), update)


def compiled(run: rubato.Run) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    compiled = torch.compile(model, backend=run.config["backend"])
    run.prepare(model=compiled, optimizer=optimizer, dataset=DATA)
    fit(run, compiled, lambda step: optimizer.step())
    counters = torch._dynamo.utils.counters
    assert counters["stats"]["unique_graphs"] >= 2, f"nothing was compiled: {counters}"
    assert not counters["recompile_limit"], counters


def frozen(run: rubato.Run) -> None:
    """Layer 0 never trains; the head does from step 10 on, the BatchNorm until then."""
    model = network()
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)

    def update(step: rubato.Step) -> None:
        optimizer.step()
        if step.index == 0:
            model[4].requires_grad_(False)
        if step.index == 10:
            model[4].requires_grad_(True)
            model[1].eval().requires_grad_(False)
        run.log(head=model[4].weight.grad is not None, norm=model[1].weight.grad is not None)

    fit(run, model, update)


class Tied(nn.Module):
    """An embedding whose rows are mostly unused, tied to the head; a layer that only some microbatches reach."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 12, sparse=sparse)
        self.sometimes = nn.Linear(12, 12)
        self.never = nn.Linear(3, 3)
        self.head = nn.Linear(12, 40, bias=False)
        if not sparse:
            self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding((x[:, 0].abs() * 10).long())
        if x.sum() > 0:
            hidden = hidden + self.sometimes(hidden)
        return self.head(hidden)


def embedding(sparse: bool) -> Any:
    def habit(run: rubato.Run) -> None:
        model = Tied(sparse)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
        run.prepare(model=model, optimizer=optimizer, dataset=DATA)

        def update(step: rubato.Step) -> None:
            optimizer.step()
            run.log(never=model.never.weight.grad is not None, sometimes=model.sometimes.weight.grad is not None)

        fit(run, model, update)

    return habit


class Checkpointed(nn.Module):
    """The body is computed again in backward: its dropout must be the same one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 19), nn.Dropout(0.5), nn.ReLU(), nn.Linear(19, 19), nn.Dropout(0.5))
        self.head = nn.Linear(19, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(checkpoint(self.body, x, use_reentrant=False))


def checkpointing(run: rubato.Run) -> None:
    model = Checkpointed()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    model.body[0].register_forward_hook(count)
    fit(run, model, lambda step: optimizer.step())
    assert calls
    assert calls % 2 == 0, "nothing was computed again"


def non_finite(run: rubato.Run) -> None:
    """The gradient of step 7 is inf; a state that is not finite is never left again, so its owner repairs it."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    for step in steps(run):
        for x, y in step:
            loss = F.cross_entropy(model(x), y)
            step.backward(loss * float("inf") if step.index == 7 and step.microbatch == 2 else loss)
        is_none = all(parameter.grad is None for parameter in model.parameters())
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        run.log(nothing=is_none, finite=bool(torch.isfinite(norm)))
        if torch.isfinite(norm):
            optimizer.step()


class Buffers(nn.Module):
    """Buffers of all kinds: double precision, nan on purpose, integers, a lowest value that begins at inf, replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)
        self.register_buffer("total", torch.tensor(1.0 + 2.0**-40, dtype=torch.float64))
        self.register_buffer("hole", torch.tensor([float("nan"), 1.0]))
        self.register_buffer("lowest", torch.tensor(float("inf")))
        self.register_buffer("coarse", torch.zeros(3, dtype=torch.bfloat16), persistent=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("centre", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.centre = self.centre * 0.9 + x.mean(0) * 0.1
                self.total += x.double().mean() * 2.0**-30
                self.hole[1] += x.mean()
                self.lowest.copy_(torch.minimum(self.lowest, x.min()))
                self.coarse += x[0, :3].bfloat16()
                self.seen += 1
        return self.layer(x - self.centre) + self.coarse.sum().float() * 0.01


def buffers(run: rubato.Run) -> None:
    model = Buffers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)

    def update(step: rubato.Step) -> None:
        optimizer.step()
        run.log(lowest=model.lowest, total=(model.total - 1) * 2**40, seen=model.seen)

    fit(run, model, update)


def weights(run: rubato.Run) -> None:
    """Two backwards a microbatch, weighted by what is not padding; some microbatches have nothing."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    for step in steps(run):
        for x, y in step:
            real = (x[:, 1] > 0.8).float()
            losses = F.cross_entropy(model(x), y, reduction="none")
            loss = (losses * real).sum() / real.sum()
            step.backward(loss, weight=float(real.sum()))
            step.backward(0.01 * sum(parameter.square().sum() for parameter in model.parameters()))
        optimizer.step()


def clipping_in_the_loop(run: rubato.Run) -> None:
    """Gradients of single microbatches are changed after they were computed, and autograd does not see it."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    for step in steps(run):
        for x, y in step:
            step.backward(F.cross_entropy(model(x), y))
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.data.clamp_(-0.02, 0.02)
        optimizer.step()


def epochs(run: rubato.Run) -> None:
    """A scheduler, an evaluation and a memory that go by epochs."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    run.prepare(model=model, optimizer=optimizer, scheduler=scheduler, dataset=DATA)
    run.state["passes"] = 0
    for epoch in run.epochs():
        for step in steps(run, epoch):
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
            optimizer.step()
            run.log(epochs=epoch.index)
        scheduler.step()
        run.state["passes"] += 1
        quality = run.evaluate(DATA, lambda x, y: F.cross_entropy(model(x), y), batch=37)
        run.log(lr=optimizer.param_groups[0]["lr"], passes=run.state["passes"], quality=quality)


HABITS: dict[str, Callable[[rubato.Run], None]] = {
    "bf16 autocast": bf16,
    "fp16 autocast with GradScaler": fp16_scaler,
    "clipping": clipping,
    "clipping in the loop": clipping_in_the_loop,
    "OneCycleLR": schedule(lambda one: lr_scheduler.OneCycleLR(one, 0.05, total_steps=200)),
    "MultiStepLR": schedule(lambda one: lr_scheduler.MultiStepLR(one, [5, 9, 9, 20]), torch.optim.RMSprop),
    "SequentialLR": schedule(warm_then_cosine),
    "ReduceLROnPlateau": plateau,
    "EMA": ema,
    "epochs": epochs,
    "gradients of the step before": gradients_before,
    "several optimizers": two_optimizers,
    "torch.compile": compiled,
    "frozen parameters": frozen,
    "tied weights and unused parameters": embedding(sparse=False),
    "sparse gradients": embedding(sparse=True),
    "gradient checkpointing": checkpointing,
    "non-finite gradient": non_finite,
    "buffers": buffers,
    "weights": weights,
}


def train(run: rubato.Run) -> None:
    HABITS[run.config["habit"]](run)


if __name__ == "__main__":
    rubato.main(train)
