"""Models of tokens: they look back only, and all users train at once to the same numbers."""

import numpy as np
import pytest
import torch

from conftest import close
from ucfl.algorithms import find
from ucfl.errors import UcflError
from ucfl.federation import Federation, LocalTraining, create
from ucfl.federation.objective import NEXT_TOKEN
from ucfl.users import Users

LENGTH, TOKENS = 7, 5
MODELS = ("character-lstm", "character-transformer")


def speakers():
    rng = np.random.default_rng(0)
    pairs = []
    for n in (6, 4, 9):
        text = rng.integers(0, TOKENS, n * LENGTH + 1)
        pairs.append((text[:-1].reshape(n, LENGTH), text[1:].reshape(n, LENGTH)))
    return Users.from_arrays(pairs, pairs, pairs, classes=TOKENS)


@pytest.mark.parametrize("name", MODELS)
def test_no_position_sees_what_comes_later(name):
    model = create(name, (LENGTH,), TOKENS, seed=0).double().eval()
    x = torch.randint(0, TOKENS, (3, LENGTH), generator=torch.Generator().manual_seed(0))
    changed = x.clone()
    changed[:, 4] = (changed[:, 4] + 1) % TOKENS
    before, after = model(x), model(changed)
    assert before.shape == (3, LENGTH, TOKENS)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4:], after[:, 4:])
    with pytest.raises(UcflError, match="sequences of tokens"):
        create(name, (1, 28, 28), 10)


@pytest.mark.parametrize("name", MODELS)
def test_all_roles_at_once_are_one_role_after_another(name):
    users = speakers()
    made = []
    for path in ({"plain": True}, {"chunk": 3}, {"chunk": 2}):
        model = create(name, (LENGTH,), TOKENS, seed=0).double()
        training = LocalTraining(lr=0.1, batch=2)
        fed = Federation(users, model, objective=NEXT_TOKEN, training=training, **path)
        assert ("stacked" in str(fed.executor)) == ("chunk" in path)
        algorithm = find("fedavg")
        state = algorithm.start(fed)
        for t in (1, 2):
            state = algorithm.round(fed, state, t)
        made.append(algorithm.models(state))
    assert close(made[1], made[0], atol=1e-10)
    assert close(made[2], made[0], atol=1e-10)


def test_the_yardsticks_models_have_their_authors_sizes():
    def count(model):
        return sum(parameter.numel() for parameter in model.parameters())

    first = 32 * 25 + 32 + 64 * 32 * 25 + 64
    assert count(create("cnn-2048", (1, 28, 28), 62)) == first + 1025 * 2048 + 2049 * 62
    assert count(create("cnn-512", (1, 28, 28), 10)) == first + 1025 * 512 + 513 * 10
