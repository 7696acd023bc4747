import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rubato.engine.tree import (
    AnyOrder,
    Order,
    Partials,
    Tree,
    balanced_owners,
    heirs,
    most_at_once,
    passes,
    radices_of,
    runs,
)

counts = st.integers(1, 48)


def reduce_in(tree: Tree, present: list[int], order: list[int], values: torch.Tensor) -> torch.Tensor:
    partials: Partials[torch.Tensor] = Partials(tree, present, lambda left, right: left.add_(right))
    for leaf in order:
        partials.put((0, leaf), values[leaf].clone())
    return partials.root()


def _in_order(values: torch.Tensor) -> torch.Tensor:
    total = values[0].clone()
    for value in values[1:]:
        total.add_(value)
    return total


@given(counts)
def test_radices_multiply_to_the_count(count: int) -> None:
    product = 1
    for radix in radices_of(count):
        product *= radix
    assert product == count
    assert Tree.of(count).span(len(radices_of(count))) == count


@given(st.data(), counts)
def test_bits_do_not_depend_on_the_order_of_arrival(data: st.DataObject, count: int) -> None:
    present = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    order = data.draw(st.permutations(present))
    values = torch.randn(count, 7, generator=torch.Generator().manual_seed(count)) * 1e3
    tree = Tree.of(count)
    expected = reduce_in(tree, present, present, values)
    assert torch.equal(reduce_in(tree, present, list(order), values), expected)


@given(st.data(), counts, st.integers(1, 8))
def test_bits_do_not_depend_on_who_held_what(data: st.DataObject, count: int, world: int) -> None:
    present = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    owners = data.draw(st.lists(st.integers(0, world - 1), min_size=count, max_size=count))
    values = torch.randn(count, 5, generator=torch.Generator().manual_seed(count)) * 1e3
    tree = Tree.of(count)
    whole: Partials[torch.Tensor] = Partials(tree, present, lambda left, right: left.add_(right))
    for rank in range(world):
        mine = [leaf for leaf in present if owners[leaf] == rank]
        part: Partials[torch.Tensor] = Partials(tree, present, lambda left, right: left.add_(right))
        for leaf in mine:
            part.put((0, leaf), values[leaf].clone())
        assert sorted(part.nodes) == sorted(tree.frontier(mine, present))
        for node in tree.frontier(mine, present):
            whole.put(node, part.nodes[node])
    assert torch.equal(whole.root(), reduce_in(tree, present, present, values))


@given(counts, st.data())
def test_the_nodes_of_a_run_are_counted_without_being_made(count: int, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, count))
    end = data.draw(st.integers(begin, count))
    tree = Tree.of(count)
    assert tree.count_nodes(begin, end) == len(tree.frontier(range(begin, end), range(count)))


@pytest.mark.parametrize("kind", ["tree", "any order"])
@given(st.data(), counts)
def test_what_is_added_in_place_gives_the_same_bits(kind: str, data: st.DataObject, count: int) -> None:
    order: Order = Tree.of(count) if kind == "tree" else AnyOrder()
    present = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    values = torch.randn(count, 7, generator=torch.Generator().manual_seed(count)) * 1e3
    put: Partials[torch.Tensor] = Partials(order, present, lambda left, right: left.add_(right))
    added: Partials[torch.Tensor] = Partials(order, present, lambda left, right: left.add_(right))
    for leaf in data.draw(st.permutations(present)):
        node = order.node_of([leaf])
        put.put(node, values[leaf].clone())
        left = added.left_of(node)
        if left is None:
            added.put(node, values[leaf].clone())
        else:
            left.add_(values[leaf])
            added.put_added(node)
        assert added.nodes.keys() == put.nodes.keys()
        assert added.held == put.held
    assert torch.equal(added.root(), put.root())


@pytest.mark.parametrize("kind", ["tree", "any order"])
@given(st.data(), counts)
def test_what_is_added_up_elsewhere_gives_the_same_bits(kind: str, data: st.DataObject, count: int) -> None:
    """A worker's last microbatch: a buffer of its own takes the sum, the parts stay, then they are released."""
    order: Order = Tree.of(count) if kind == "tree" else AnyOrder()
    present = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    mine = sorted(data.draw(st.sets(st.sampled_from(present), min_size=1)))
    values = torch.randn(count, 7, generator=torch.Generator().manual_seed(count)) * 1e3
    released: list[torch.Tensor] = []
    put: Partials[torch.Tensor] = Partials(order, present, lambda left, right: left.add_(right))
    joined: Partials[torch.Tensor] = Partials(order, present, lambda left, right: left.add_(right), released.append)
    for leaf in mine[:-1]:
        for partials in (put, joined):
            partials.put(order.node_of([leaf]), values[leaf].clone())
    node, total = order.node_of([mine[-1]]), values[mine[-1]].clone()
    put.put(node, total.clone())
    before = {held: (vector, vector.clone()) for held, vector in joined.nodes.items()}
    ends_in, lefts, left_alone = joined.joins(node)
    for first, *others in lefts:
        left = first
        for other in others:
            left = left + other
        total = left + total
    assert all(torch.equal(vector, copy) for vector, copy in before.values())
    released.clear()
    joined.put_joined(node, total)
    assert joined.nodes[ends_in] is total
    assert joined.held == put.held
    assert joined.nodes.keys() == put.nodes.keys() == {ends_in, *left_alone}
    assert all(torch.equal(joined.nodes[held], put.nodes[held]) for held in put.nodes)
    gone = [vector for held, (vector, _) in before.items() if held not in joined.nodes]
    assert {id(vector) for vector in released} == {id(vector) for vector in gone}


@given(count=counts, data=st.data())
def test_a_run_of_microbatches_never_takes_more_sums_than_the_factors_allow(count: int, data: st.DataObject) -> None:
    """The bound on a worker's memory that docs/benchmarks.md states."""
    begin = data.draw(st.integers(0, count - 1))
    end = data.draw(st.integers(begin + 1, count))
    tree = Tree.of(count)
    factors = sum(radix - 1 for radix in radices_of(count))
    most = most_at_once(tree, range(begin, end), range(count))
    assert most <= (1 if begin == 0 else 2) * factors + 1


@given(count=counts, data=st.data())
def test_so_many_vectors_are_enough_to_add_up_in_place(count: int, data: st.DataObject) -> None:
    """As a worker does it: in place where that is possible, the last one beside all that is held."""
    order: Order = data.draw(st.sampled_from([Tree.of(count), AnyOrder()]))
    present = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    begin = data.draw(st.integers(0, len(present) - 1))
    mine = present[begin : data.draw(st.integers(begin + 1, len(present)))]
    free: list[object] = []
    made = 0
    partials: Partials[object] = Partials(order, present, lambda left, right: left, free.append)
    due = list(passes(order, mine))
    for number, leaves in enumerate(due):
        node = order.node_of(leaves)
        if number < len(due) - 1 and partials.left_of(node) is not None:
            partials.put_added(node)
            continue
        made += not free
        partials.put(node, free.pop() if free else object())
    assert made == most_at_once(order, mine, present)


def test_a_sum_over_ranks_depends_on_their_number() -> None:
    """Why programs get no collectives of their own (ADR 34): each worker adds its own, then the ranks in order."""
    values = torch.randn(48, 4096, generator=torch.Generator().manual_seed(1)) * 1e3

    def over_ranks(world: int) -> torch.Tensor:
        parts = [_in_order(part) for part in values.tensor_split(world)]
        return _in_order(torch.stack(parts))

    sums = [over_ranks(world) for world in range(1, 17)]
    assert len({one.numpy().tobytes() for one in sums}) == 16


def test_a_doubled_microbatch_is_an_error() -> None:
    partials: Partials[float] = Partials(Tree.of(4), range(4), lambda left, right: left + right)
    partials.put((0, 0), 1.0)
    partials.put((0, 1), 1.0)
    with pytest.raises(ValueError, match="counted twice"):
        partials.put((0, 1), 1.0)


def test_a_missing_microbatch_is_an_error() -> None:
    partials: Partials[float] = Partials(Tree.of(4), range(4), lambda left, right: left + right)
    for leaf in (0, 1, 3):
        partials.put((0, leaf), 1.0)
    with pytest.raises(ValueError, match=r"\[2\] are missing"):
        partials.root()


@given(counts, st.integers(1, 16))
def test_owners_are_balanced_and_contiguous(count: int, world: int) -> None:
    owners = balanced_owners(count, world)
    assert list(owners) == sorted(owners)
    sizes = [owners.count(rank) for rank in range(world)]
    assert sum(sizes) == count
    assert max(sizes) - min(sizes) <= 1


def test_a_power_of_two_world_holds_one_node_each() -> None:
    tree = Tree.of(16)
    for world in (1, 2, 4, 8, 16):
        owners = balanced_owners(16, world)
        for rank in range(world):
            assert len(tree.frontier([leaf for leaf in range(16) if owners[leaf] == rank], range(16))) == 1


def test_orphans_are_shared_out_in_runs() -> None:
    assert heirs((0, None, None, 1, None), 2) == (0, 0, 0, 1, 1)
    assert heirs((None, None, 1, None, None), 2) == (0, 0, 1, 1, 1)
    assert heirs((0, 0, 1), 2) == (0, 0, 1)


@given(st.data(), counts, st.integers(1, 8))
def test_in_any_order_a_worker_holds_one_sum_and_each_microbatch_counts_once(
    data: st.DataObject, count: int, world: int
) -> None:
    order = AnyOrder()
    present = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    owners = data.draw(st.lists(st.integers(0, world - 1), min_size=count, max_size=count))
    whole: Partials[int] = Partials(order, present, lambda left, right: left + right)
    for rank in range(world):
        mine = [leaf for leaf in present if owners[leaf] == rank]
        part: Partials[int] = Partials(order, present, lambda left, right: left + right)
        for leaves in runs(mine):  # one backward pass goes over each
            part.put(order.node_of(leaves), sum(3**leaf for leaf in leaves))
        assert list(part.nodes) == order.frontier(mine, present)
        for node, value in part.nodes.items():
            whole.put(node, value)
    assert whole.root() == sum(3**leaf for leaf in present)
    with pytest.raises(ValueError, match="counted twice"):
        whole.put(order.node_of([present[0]]), 1)


@given(st.sets(st.integers(0, 40)))
def test_runs_have_no_gaps_and_as_few_as_there_can_be(numbers: set[int]) -> None:
    found = list(runs(sorted(numbers)))
    assert [number for run in found for number in run] == sorted(numbers)
    assert all(later.start > earlier.stop for earlier, later in itertools.pairwise(found))
