"""What is particular to each algorithm."""

import pytest
import torch

from conftest import close, make_federation, make_users
from ucfl.algorithms import find
from ucfl.errors import UcflError
from ucfl.wireless import Traffic


def test_fedavg_weights_by_size(unequal_users):
    fed = make_federation(unequal_users)
    algorithm = find("fedavg")
    local = fed.train(fed.initial(), 1)
    share = fed.sizes.double() / fed.sizes.sum()
    theta = algorithm.models(algorithm.round(fed, algorithm.start(fed), 1))
    assert close(theta, (share[:, None] * local).sum(0).expand(5, -1), atol=1e-12)
    assert algorithm.traffic(fed, {}) == Traffic(down=1, up=1)


def test_oracle_is_fedavg_inside_each_group(unequal_users):
    fed = make_federation(unequal_users)
    oracle, fedavg = find("oracle"), find("fedavg")
    theta = oracle.models(oracle.round(fed, oracle.start(fed), 1))
    for members in ([0, 1], [2, 3, 4]):
        part = make_federation(unequal_users.select(members))
        alone = fedavg.models(fedavg.round(part, fedavg.start(part), 1))
        assert close(theta[members], alone, atol=1e-12)
    assert oracle.traffic(fed, {}) == Traffic(down=2, up=1)


def test_oracle_needs_groups():
    fed = make_federation(make_users([5, 5]))
    with pytest.raises(UcflError, match="true groups"):
        find("oracle").check(fed)


def test_local_sends_nothing(unequal_users):
    fed = make_federation(unequal_users)
    local = find("local")
    theta = local.models(local.round(fed, local.start(fed), 1))
    assert torch.equal(theta, fed.train(fed.initial(), 1))
    assert local.traffic(fed, {}) == Traffic(down=0, up=0)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("fedagv", "did you mean 'fedavg'"),
        ("fedavg:mu", "option=value"),
        ("fedavg:mu=1", "has no options"),
    ],
)
def test_bad_names_and_options_are_one_sentence(text, sentence):
    with pytest.raises(UcflError, match=sentence):
        find(text)
