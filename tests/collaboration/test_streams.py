"""k-means and silhouettes on shared distances, against scikit-learn's."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, silhouette_score

from ucfl.collaboration import choose_streams, collaboration_weights, fixed_streams, streams
from ucfl.collaboration.streams import NEARLY, Clusterings, centroids
from ucfl.errors import UcflError


def grouped_weights(m, groups, distance=1.5, seed=0, dimensions=50):
    """W of users in groups whose gradients differ; also the true groups."""
    rng = np.random.default_rng(seed)
    group = np.arange(m) * groups // m
    gradients = distance * rng.normal(size=(groups, dimensions))[group]
    gradients += rng.normal(size=(m, dimensions))
    sizes = rng.integers(50, 150, m)
    return collaboration_weights(gradients, np.full(m, 2.0 * dimensions), sizes), group


def inertia(rows, labels):
    return ((rows - centroids(rows, labels)[labels]) ** 2).sum()


@pytest.mark.parametrize(("m", "groups", "distance"), [(12, 3, 2), (20, 4, 1.5), (40, 5, 1)])
def test_same_k_as_scikit_learns_plain_computation(m, groups, distance):
    weights, _ = grouped_weights(m, groups, distance)
    plan = choose_streams(weights)
    plain = {}
    for k in range(2, m):
        labels = KMeans(k, n_init=10, random_state=0).fit(weights).labels_
        plain[k] = silhouette_score(weights, labels)
    best = max(plain, key=plain.get)
    assert plan.count == best
    assert plan.silhouettes[best] == pytest.approx(plain[best], abs=1e-9)


@pytest.mark.parametrize("k", [2, 3, 7, 12, 19])
def test_clusters_are_as_tight_as_scikit_learns(k):
    for seed in range(3):
        weights, _ = grouped_weights(24, 4, distance=0.7, seed=seed)
        reference = KMeans(k, n_init=20, random_state=0).fit(weights).inertia_
        assert inertia(weights, Clusterings(weights).labels(k)) <= reference * (1 + 1e-6)


@settings(max_examples=50, deadline=None)
@given(m=st.integers(2, 14), seed=st.integers(0, 999), data=st.data())
def test_silhouette_is_scikit_learns(m, seed, data):
    points = np.random.default_rng(seed).random((m, m))
    k = data.draw(st.integers(2, m))
    labels = Clusterings(points).labels(k)
    assert len(np.unique(labels)) == k
    ours = Clusterings(points).silhouette(labels)
    assert ours == pytest.approx(silhouette_score(points, labels) if k < m else 0.0, abs=1e-12)
    assert -1 <= ours <= 1


@settings(max_examples=30, deadline=None)
@given(m=st.integers(1, 12), seed=st.integers(0, 999))
def test_a_plan_is_consistent(m, seed):
    rng = np.random.default_rng(seed)
    weights = collaboration_weights(rng.normal(size=(m, 3)), rng.random(m) + 0.1, np.ones(m))
    plan = choose_streams(torch.from_numpy(weights), seed=seed)
    assert set(plan.silhouettes) == set(plan.scores) == set(range(1, m + 1))
    assert plan.silhouettes[1] == 0.0
    assert plan.silhouettes[m] == pytest.approx(0.0)
    assert sorted(set(plan.labels)) == list(range(plan.count))
    assert plan.centroids.shape == (plan.count, m)
    np.testing.assert_allclose(plan.centroids.sum(1), 1)
    for stream in range(plan.count):
        members = plan.labels == stream
        np.testing.assert_allclose(plan.centroids[stream], weights[members].mean(0))
    mixing = plan.mixing()
    theta = torch.randn(m, 4, dtype=torch.float64)
    assert torch.allclose(mixing @ theta, torch.from_numpy(plan.centroids[plan.labels]) @ theta)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999))
def test_renaming_users_renames_the_streams(seed):
    weights, _ = grouped_weights(12, 3, distance=2, seed=seed)
    order = np.random.default_rng(seed).permutation(12)
    before, after = choose_streams(weights), choose_streams(weights[np.ix_(order, order)])
    assert after.count == before.count
    assert adjusted_rand_score(before.labels[order], after.labels) == 1.0


def test_groups_are_found_and_numbered_in_order():
    weights, group = grouped_weights(20, 4, distance=2)
    plan = choose_streams(weights)
    assert plan.labels.tolist() == group.tolist()


def test_identical_users_need_one_stream_and_no_more_can_be_told_apart():
    plan = choose_streams(np.full((5, 5), 0.2))
    assert plan.count == 1
    assert plan.silhouettes == {1: 0.0}
    two = np.repeat(np.array([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]]), 2, axis=0)
    plan = choose_streams(two)
    assert (plan.count, max(plan.silhouettes)) == (2, 2)
    assert plan.silhouettes[2] == pytest.approx(1.0)
    assert fixed_streams(two, 3).count == 2


def test_trade_offs_by_name_and_by_function():
    weights, _ = grouped_weights(20, 4, distance=2)
    best = choose_streams(weights)
    assert best.scores == best.silhouettes
    dear = choose_streams(weights, "silhouette-minus-cost:100")
    assert dear.count == 1
    own = choose_streams(weights, lambda k, s: -abs(k - 7))
    assert own.count == 7
    half = choose_streams(weights, "silhouette-minus-cost")
    assert half.scores[3] == pytest.approx(half.silhouettes[3] - 0.5 * 3 / 20)


def test_fewer_streams_win_where_silhouettes_are_nearly_equal():
    weights, _ = grouped_weights(20, 4, distance=2)
    silhouettes = choose_streams(weights).silhouettes
    top = max(silhouettes.values())
    assert choose_streams(weights).count == min(
        k for k, s in silhouettes.items() if s >= top - NEARLY
    )
    flat = choose_streams(weights, lambda k, s: 1.0)
    assert flat.count == 1


def test_a_cap_on_streams():
    weights, _ = grouped_weights(20, 4, distance=2)
    plan = choose_streams(weights, max_streams=3)
    assert max(plan.silhouettes) == 3
    assert plan.count <= 3


@pytest.mark.parametrize("count", [1, 4, 19, 20])
def test_fixed_streams(count):
    weights, _ = grouped_weights(20, 4)
    plan = fixed_streams(weights, count)
    assert plan.count == count
    if count == 20:
        np.testing.assert_array_equal(plan.mixing().streams.numpy(), weights)
    if count == 1:
        np.testing.assert_allclose(plan.centroids[0], weights.mean(0))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda w: choose_streams(w, "silhouete"), "did you mean 'silhouette'"),
        (lambda w: choose_streams(w, "silhouette-minus-cost:much"), "write a number"),
        (lambda w: choose_streams(w, "silhouette:2"), "takes no number"),
        (lambda w: choose_streams(w, max_streams=0), "at least one stream"),
        (lambda w: choose_streams(w[:, :-1]), "square"),
        (lambda w: choose_streams(w - 1), "not negative"),
        (lambda w: fixed_streams(w, 21), "choose 1 to 20"),
        (lambda w: fixed_streams(w, 0), "choose 1 to 20"),
    ],
)
def test_senseless_input_is_one_sentence(call, sentence):
    weights, _ = grouped_weights(20, 4)
    with pytest.raises(UcflError, match=sentence):
        call(weights)


def test_very_many_users_are_clustered_as_few_are(monkeypatch):
    """Fewer dimensions and a sample: the same groups, and nearly the same silhouettes."""
    rng = np.random.default_rng(0)
    member = np.eye(5).repeat(60, 0)
    weights = member @ member.T + 0.3 * rng.random((300, 300))
    weights /= weights.sum(1, keepdims=True)
    exact = choose_streams(weights, max_streams=8)
    monkeypatch.setattr(streams, "LARGE", 200)
    monkeypatch.setattr(streams, "DIMENSIONS", 20)
    monkeypatch.setattr(streams, "SAMPLE", 150)
    large = choose_streams(weights, max_streams=8)
    assert large.count == exact.count == 5
    assert large.labels.tolist() == exact.labels.tolist()
    assert large.silhouettes[5] >= exact.silhouettes[5] - 0.02  # noise directions are left out
