"""Compressed links: metered bytes are declared bytes, and a round is what it is by hand."""

import numpy as np
import pytest
import torch

import ucfl
from conftest import close, make_federation, model_for
from federation.codec import decoded, encoded
from ucfl.algorithms import REGISTRY, find
from ucfl.collaboration import Mixing
from ucfl.errors import UcflError
from ucfl.federation import Links, Wire
from ucfl.federation.compression import COMPRESSIONS
from ucfl.federation.draws import counter_hash, uniform

pytestmark = pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")
#: Their users' models reach others beside the product, which has no message for that.
REFUSED = ("fedfomo", "adaptive-user-centric")
#: Nothing is sent.
SILENT = ("local",)
WITH_PARTS = [*(name for name in REGISTRY if name not in REFUSED), "fedper:personal=1+5"]
LOSSY = [
    pytest.param("quantise:bits=8", 1.0, marks=pytest.mark.long),
    ("quantise:bits=4", 0.4),
    ("top-k:share=0.05", 0.4),
    ("sketch:share=0.1", 1.0),
]


class Meter:
    """Bytes of messages that are really encoded, and decoded to what arrives."""

    def __init__(self, monkeypatch):
        self.up, self.down, self.link, self.heard = [], 0, "", None
        for kind in COMPRESSIONS.values():
            monkeypatch.setattr(kind, "received", self._metered(kind.received))
        up, down = Wire.up, Wire.down

        def metered_up(wire, rows, since, message, ids, here):
            self.link, self.heard = "up", None
            count = len(rows) if here is None else len(here)
            self.up += [count * message.raw * rows.element_size()]  # buffers, as they are
            return up(wire, rows, since, message, ids, here)

        def metered_down(wire, mixed, since, message, streams):
            present = streams.present
            there = slice(None) if present is None else present
            if streams.silent is not None:
                there = there & ~streams.silent[streams.labels]
            self.link, self.heard = "down", set(streams.labels[there].tolist())
            hearable = torch.ones_like(streams.labels, dtype=torch.bool)
            if streams.silent is not None:
                hearable = ~streams.silent[streams.labels]
            self.streams = streams.labels[hearable].unique().tolist()
            self.down += len(self.heard) * message.raw * mixed.element_size()
            return down(wire, mixed, since, message, streams)

        monkeypatch.setattr(Wire, "up", metered_up)
        monkeypatch.setattr(Wire, "down", metered_down)

    def _metered(self, received):
        def method(how, messages, lengths, keys):
            arrived = received(how, messages, lengths, keys)
            sizes = [
                self._size(how, row.numpy(), lengths, int(key))
                for row, key in zip(arrived, keys, strict=True)
            ]
            if self.link == "up":
                self.up += sizes
            else:
                which = zip(self.streams, sizes, strict=True)
                self.down += sum(size for stream, size in which if stream in self.heard)
            return arrived

        return method

    @staticmethod
    def _size(how, row, lengths, key):
        data = encoded(how, row, lengths, key)
        assert np.allclose(decoded(how, data, lengths, key, row.dtype), row, rtol=1e-5, atol=0)
        return len(data)

    def read(self):
        found = self.down, sum(self.up)
        self.down, self.up = 0, []
        return found


@pytest.mark.parametrize(("how", "participation"), LOSSY)
@pytest.mark.parametrize("name", WITH_PARTS)
def test_declared_bytes_are_the_bytes_of_encoded_messages(
    name, how, participation, monkeypatch, tmp_path
):
    meter, counted = Meter(monkeypatch), []
    scenario = ucfl.Scenario(
        users=8,
        points=400,
        rounds=3,
        model=model_for(name),
        groups=2,
        participation=participation,
        uplink=how,
        downlink=how,
    )
    run = ucfl.run(
        scenario,
        name,
        out=tmp_path / "run",
        plain=True,
        device="cpu",
        on_round=lambda progress: counted.append(meter.read()),
    )
    sent, cohorts = run.checkpoint.traffic.tolist(), run.checkpoint.cohorts
    assert len(counted) == len(sent) == 3
    for (down, up), row, there in zip(counted, sent, cohorts, strict=True):
        declared = ucfl.wireless.Traffic(*row)
        assert down == pytest.approx(declared.down_bytes(run.model_bytes), rel=1e-12)
        assert up == pytest.approx(declared.up_bytes(run.model_bytes, int(there.sum())), rel=1e-12)
    assert (sum(up for _, up in counted) == 0) == (name in SILENT)


@pytest.mark.parametrize("link", ["uplink", "downlink"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compressed_is_refused_in_a_sentence(name, link, tmp_path):
    scenario = ucfl.Scenario(users=4, points=200, rounds=1, model="logistic")
    with pytest.raises(UcflError, match=rf"{name} sends .* leave {link} at none"):
        ucfl.run(
            scenario.change({link: "quantise"}),
            name,
            out=tmp_path / "run",
            plain=True,
            device="cpu",
        )


def rounds(name, fed, links, count, state=None, first=1, among=None):
    """An algorithm's rounds as a run makes them."""
    algorithm = find(name)
    state = algorithm.start(fed) if state is None else state
    fed.links = links
    for t in range(first, first + count):
        wire = Wire.of(links, fed.seed, t, state)
        state = {**algorithm.round(fed.among(among, wire=wire), state, t), **wire.after}
    return state


def by_hand(x, bits, lengths, key):
    """Stochastic rounding, number by number, in Python."""
    top, found, place = 2 ** (bits - 1) - 1, [], 0
    for n in lengths:
        scale = max(abs(v) for v in x[place : place + n])
        for v in x[place : place + n]:
            mixed = scramble((place * 0x9E3779B1 + 0x7F4A7C15) % 2**32)
            u = (scramble(key ^ mixed) >> 8) / 2**24
            found.append(np.floor(v / scale * top + u) * scale / top if scale else 0.0)
            place += 1
    return np.array(found)


def scramble(h):
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) % 2**32
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) % 2**32
    return h ^ (h >> 16)


def test_a_round_of_fedavg_by_hand(unequal_users):
    """Quantised updates, averaged by n_j / Σ n; the average's change quantised again."""
    fed = make_federation(unequal_users, "logistic")
    before = fed.initial()
    trained = fed.train(before, 1).numpy()
    start, sizes = before[0].numpy(), fed.sizes.numpy()
    lengths = [int(np.prod(shape)) for shape in fed.rows.shapes.values()]
    average = np.zeros_like(start)
    for j, row in enumerate(trained):
        key = int(counter_hash(0, 1, fed.users.ids[j], -31, 0, 0))
        average += sizes[j] / sizes.sum() * (start + by_hand(row - start, 4, lengths, key))
    key = int(counter_hash(0, 1, torch.tensor(0), -31, 1, 0))
    expected = start + by_hand(average - start, 8, lengths, key)
    state = rounds("fedavg", fed, Links.of("quantise:bits=4", "quantise:bits=8"), 1)
    for row in state["theta"]:
        assert close(row, torch.from_numpy(expected), atol=1e-12)
    assert not np.allclose(expected, average, atol=1e-6)


def test_two_rounds_with_error_feedback_by_hand(unequal_users):
    """Top-k both ways: what is not sent is sent later, by each user and by the server."""
    fed = make_federation(unequal_users, "logistic")
    size = fed.rows.size
    count = int(np.ceil(0.1 * size))
    shares = (fed.sizes.double() / fed.sizes.sum()).numpy()

    def largest(x):
        sent = np.zeros_like(x)
        chosen = np.argsort(-np.abs(x))[:count]
        sent[chosen] = x[chosen]
        return sent

    model, owed, server = fed.initial()[0].numpy(), np.zeros((fed.m, size)), np.zeros(size)
    for t in (1, 2, 3):
        local = fed.train(torch.from_numpy(model).expand(fed.m, -1), t).numpy()
        average = np.zeros(size)
        for j in range(fed.m):
            wanted = local[j] - model + owed[j]
            sent = largest(wanted)
            owed[j] = wanted - sent
            average += shares[j] * (model + sent)
        wanted = average - model + server
        model = model + largest(wanted)
        server = wanted - largest(wanted)
    state = rounds("fedavg", fed, Links.of("top-k:share=0.1", "top-k:share=0.1"), 3)
    assert close(state["theta"][0], torch.from_numpy(model), atol=1e-12)
    assert close(state["uplink/0"], torch.from_numpy(owed), atol=1e-12)
    assert close(state["downlink/0"][0], torch.from_numpy(server), atol=1e-12)


def test_absent_users_send_nothing_and_owe_what_they_owed(unequal_users):
    fed, links = make_federation(unequal_users), Links.of("top-k:share=0.1", "none")
    first = rounds("fedavg", fed, links, 1)
    there = torch.tensor([True, False, True, False, False])
    second = rounds("fedavg", fed, links, 1, first, 2, there)
    absent = ~there
    assert torch.equal(second["uplink/0"][absent], first["uplink/0"][absent])
    assert not torch.equal(second["uplink/0"][there], first["uplink/0"][there])
    assert first["uplink/0"].any(1).all()


@pytest.mark.parametrize("how", ["quantise:bits=4", "top-k:share=0.05", "sketch:share=0.1"])
def test_what_stays_with_its_user_is_not_compressed(how, unequal_users):
    """FedPer's heads: as trained, to the bit; Ditto's personal models know of it by θ alone."""
    fed, links = make_federation(unequal_users), Links.of(how, how)
    head = fed.part("head").mask
    trained = fed.train(fed.initial(), 1)
    state = rounds("fedper", fed, links, 1)
    assert torch.equal(state["theta"][:, head], trained[:, head])
    assert not close(state["theta"][:, ~head], rounds("fedper", fed, Links(), 1)["theta"][:, ~head])
    personal = [rounds("ditto", fed, each, 1)["personal"] for each in (links, Links())]
    assert torch.equal(*personal)


@pytest.mark.parametrize("name", WITH_PARTS)
def test_listeners_of_a_stream_have_one_model(name, unequal_users):
    """Also where each has its own prior: what differs between them is that alone."""
    fed = make_federation(unequal_users, model_for(name))
    lossy, plain = (
        rounds(name, fed, Links.of("none", how), 2) for how in ("quantise:bits=6", "none")
    )
    if find(name).traffic(fed, plain).down >= fed.m:
        return  # a stream for each: what is equal by chance is not sent as one message
    key = next((key for key in ("theta", "clusters", "components") if key in plain), None)
    for i, row in enumerate(plain[key]):
        for j in range(i):
            same = close(row, plain[key][j], atol=1e-12)
            assert close(lossy[key][i], lossy[key][j], atol=1e-12) or not same


def test_a_stream_whose_listeners_had_different_models_is_refused(unequal_users):
    fed = make_federation(unequal_users)
    fed.links = Links.of("none", "quantise")
    fed = fed.among(None, wire=Wire.of(fed.links, 0, 1, {}))
    had = fed.initial() + torch.arange(fed.m)[:, None]
    with pytest.raises(UcflError, match="had different models before"):
        fed.exchange(Mixing.average(fed.sizes), had, had)


def test_outside_of_a_run_nobody_remembers(unequal_users):
    fed = make_federation(unequal_users)
    fed.links = Links.of("quantise", "none")
    algorithm = find("fedavg")
    with pytest.raises(UcflError, match=r"remembered by a run: train with ucfl\.run"):
        algorithm.round(fed.among(None), algorithm.start(fed), 1)


def test_rows_that_are_no_models_are_refused(unequal_users):
    fed = make_federation(unequal_users)
    fed.links = Links.of("quantise", "none")
    fed = fed.among(None, wire=Wire.of(fed.links, 0, 1, {}))
    rows = torch.zeros(fed.m, 3)
    with pytest.raises(UcflError, match="are no models of"):
        fed.exchange(Mixing.average(fed.sizes), rows, rows)


def test_buffers_are_sent_as_they_are(unequal_users):
    """BatchNorm's variances stay positive, whatever is done to the weights."""
    fed = make_federation(unequal_users, "conftest:normalised")
    cut = fed.rows.trainable
    lossy, plain = (
        rounds("fedavg", fed, links, 1)["theta"]
        for links in (Links.of("quantise:bits=2", "quantise:bits=2"), Links())
    )
    assert torch.equal(lossy[:, cut:], plain[:, cut:])
    assert not close(lossy[:, :cut], plain[:, :cut])


def test_the_key_is_seed_round_user_and_message(unequal_users):
    """Two users with one update, two rounds, two messages: all draw apart."""
    keys = {
        int(counter_hash(seed, t, torch.tensor(user), -31, link, number))
        for seed in (0, 1)
        for t in (1, 2)
        for user in (0, 1)
        for link in (0, 1)
        for number in (0, 1)
    }
    assert len(keys) == 32
    assert uniform(0, 1, torch.tensor(0)) != uniform(0, 1, torch.tensor(0), -31)
