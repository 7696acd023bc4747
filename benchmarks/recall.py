"""How many of the heavy elements a sketch finds, by its columns.

python -m benchmarks.recall [--sizes 10000,100000,1000000] [--widths 9,36,120] [--densities 0.001,0.01,0.05] [--write]

Of k elements that are ten times as large as the noise of each of eight workers; of k that are alone, as nothing else is
there; and of gradients, as a sketch meets them: the network of the recipe `image-classifier` on handwritten digits,
after 20 updates that apply the k largest and keep the others. How fast anything is, is not asked.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from math import sqrt

import torch
from torch import nn

from benchmarks.document import markdown_table, publish
from benchmarks.flags import decimals, numbers
from benchmarks.machine import today, versions
from rubato.recipes.image_classifier import Digits, network
from rubato.strategies.selection import largest
from rubato.strategies.sizes import CANDIDATES, columns_for, count_of
from rubato.strategies.sketch import CountSketch

ROWS, WORKERS = 5, 8
TIMES = (0.8, 4.0, 10.0)
"""Columns, in units of k: with the first the table is as large as the second look, with the last 5 % of D at 0.001."""
HEAVY = 10.0
"""In standard deviations of the noise of a worker."""
UPDATES, BATCH, RATE = 20, 128, 0.05
ELEMENTS, MOST = 1_000_000, 20
"""So many of a size and density are drawn, in so many vectors at most."""
Draw = Callable[[int, int, int], torch.Tensor]
"""Of a number of elements, that of heavy ones and a seed."""


def planted(numel: int, heavy: int, seed: int) -> torch.Tensor:
    """The sum over the workers."""
    generator = torch.Generator().manual_seed(seed)
    total = sqrt(WORKERS) * torch.randn(numel, generator=generator)
    places = torch.randperm(numel, generator=generator)[:heavy]
    total[places] += WORKERS * HEAVY * torch.sign(torch.randn(heavy, generator=generator))
    return total


def alone(numel: int, heavy: int, seed: int) -> torch.Tensor:
    """Nothing but some elements, of normal sizes."""
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros(numel)
    total[torch.randperm(numel, generator=generator)[:heavy]] = torch.randn(heavy, generator=generator)
    return total


def gradients(width: int, density: float) -> torch.Tensor:
    """Of all matrices of a network, with what was kept of earlier ones."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    digits = Digits(train=True)
    model = network(width, dropout=0.0)
    weights = [one for one in model.parameters() if one.dim() > 1]
    sizes = [one.numel() for one in weights]
    total = torch.zeros(sum(sizes))
    for update in range(UPDATES + 1):
        batch = torch.randint(len(digits), (BATCH,), generator=generator)
        loss = nn.functional.cross_entropy(model(digits.images[batch]), digits.labels[batch])
        total += torch.cat([one.flatten() for one in torch.autograd.grad(loss, weights)])
        if update == UPDATES:
            break
        applied, chosen = torch.zeros_like(total), largest(total.abs(), count_of(density, sum(sizes)))
        applied[chosen], total[chosen] = total[chosen], 0.0
        for weight, part in zip(weights, torch.split(applied, sizes), strict=True):
            weight.data -= RATE * part.view_as(weight)
    return total


def found(total: torch.Tensor, heavy: int, columns: int, seed: int) -> tuple[float, float]:
    """The share of the largest that is among the candidates; and that of their squares in what is applied."""
    sketch = CountSketch(total.numel(), ROWS, columns, seed)
    candidates = largest(sketch.estimate(sketch.of(total)).abs(), min(CANDIDATES * heavy, total.numel()))
    truth = largest(total.abs(), heavy)
    applied = total[candidates][largest(total[candidates].abs(), heavy)]
    recall = torch.isin(truth, candidates).double().mean()
    return float(recall), float(applied.square().sum() / total[truth].square().sum())


def vectors(sizes: Sequence[int], widths: Sequence[int], density: float) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """By what they are, some of a kind and size."""
    draws: dict[str, Draw] = {"planted": planted, "alone": alone}
    for name, draw in draws.items():
        for size in sizes:
            heavy = count_of(density, size)
            yield name, [draw(size, heavy, seed) for seed in range(min(MOST, max(1, ELEMENTS // size)))]
    for width in widths:
        yield "gradients", [gradients(width, density)]


def table(sizes: Sequence[int], widths: Sequence[int], densities: Sequence[float]) -> str:
    """Per cent that are found, in brackets those of the squares; and how large a table of `auto` is."""
    rows = []
    for density in densities:
        for name, drawn in vectors(sizes, widths, density):
            numel = drawn[0].numel()
            heavy = count_of(density, numel)
            auto = columns_for(heavy, numel, ROWS)
            cells = [name, f"{numel:,}", f"{density:g}", f"{ROWS * auto / numel:.1%}"]
            for columns in (*(round(times * heavy) for times in TIMES), auto):
                seen = [found(one, heavy, columns, seed) for seed, one in enumerate(drawn)]
                recall, squares = (100 * statistics.fmean(values) for values in zip(*seen, strict=True))
                cells.append(f"{recall:.1f} ({squares:.0f})")
            rows.append(cells)
            print(" | ".join(cells), file=sys.stderr)
    heads = ["elements", "D", "density", "table of `auto`, of D", *(f"{times:g} k" for times in TIMES), "`auto`"]
    return markdown_table(heads, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="How many of the heavy elements a sketch finds, by its columns.")
    parser.add_argument("--sizes", type=numbers, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--widths", type=numbers, default=[9, 36, 120], help="of the network whose gradients are taken")
    parser.add_argument("--densities", type=decimals, default=[0.001, 0.01, 0.05])
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    flags = parser.parse_args()
    head = (
        f"{today()}; {versions(['torch'])}. Per cent of the k largest elements that are among the {CANDIDATES} k "
        f"candidates of a sketch of {ROWS} rows, by its columns (in brackets: of the squares of the k largest, "
        f"those of what is applied); means of up to {MOST} vectors."
    )
    publish("recall", f"{head}\n\n{table(flags.sizes, flags.widths, flags.densities)}", writes=flags.write)


if __name__ == "__main__":
    main()
