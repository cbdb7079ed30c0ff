"""Messages as real bytes: encoders and decoders written by hand, from the docstrings alone.

A decoded message must be what the compression says that arrives, and the bytes must be as many.
"""

import math

import numpy as np

from ucfl.federation.compression import Quantise, Sketch, TopK

LOW = 2**32 - 1


def scrambled(h):
    """MurmurHash3's finaliser, in NumPy."""
    h = np.asarray(h, dtype=np.uint64) & np.uint64(LOW)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = ((h ^ (h >> np.uint64(shift))) * np.uint64(factor)) & np.uint64(LOW)
    return h ^ (h >> np.uint64(16))


def hashes(key, count):
    """What both sides draw for each of ``count`` places."""
    place = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B1) + np.uint64(0x7F4A7C15)
    return scrambled(np.uint64(key) ^ scrambled(place))


def packed(numbers, bits):
    """Whole numbers of so many bits each, one after another."""
    each = (np.asarray(numbers)[:, None] >> np.arange(bits)) & 1
    return np.packbits(each.astype(np.uint8).ravel()).tobytes()


def unpacked(data, bits, count):
    each = np.unpackbits(np.frombuffer(data, np.uint8))[: count * bits].reshape(count, bits)
    return (each.astype(np.int64) << np.arange(bits)).sum(1)


def count_of(share, n):
    return min(n, math.ceil(round(share * n, 6)))


def encoded(how, arrived, lengths, key):
    """A message that arrives like this, as bytes."""
    number, data, start = arrived.dtype.itemsize, b"", 0
    if isinstance(how, TopK):
        count = count_of(how.share, len(arrived))
        chosen = np.flatnonzero(arrived)
        assert len(chosen) <= count  # fewer where a number that was sent is zero
        unused = np.flatnonzero(arrived == 0)[: count - len(chosen)]
        places = np.concatenate([chosen, unused])
        return arrived[places].tobytes() + packed(places, math.ceil(math.log2(len(arrived))))
    drawn = hashes(key, len(arrived))
    for n in lengths:
        part, by = arrived[start : start + n], drawn[start : start + n]
        start += n
        if isinstance(how, Quantise):
            top = 2 ** (how.bits - 1) - 1
            unit = np.abs(part).max() / top
            level = np.rint(part / unit if unit else part).astype(np.int64)
            assert np.abs(level).max() <= top
            data += unit.astype(part.dtype).tobytes() + packed(level + top, how.bits)
        else:
            assert isinstance(how, Sketch)
            buckets = np.zeros(count_of(how.share, n), part.dtype)
            sign = 1 - 2 * (by & np.uint64(1)).astype(np.int64)
            buckets[((by >> np.uint64(1)) * np.uint64(len(buckets))) >> np.uint64(31)] = sign * part
            data += buckets.tobytes()
    assert start == len(arrived)
    assert number in (4, 8)
    return data


def decoded(how, data, lengths, key, dtype):
    """What is in the bytes."""
    number, total, found = np.dtype(dtype).itemsize, sum(lengths), []
    if isinstance(how, TopK):
        count = count_of(how.share, total)
        values = np.frombuffer(data[: count * number], dtype)
        row = np.zeros(total, dtype)
        row[unpacked(data[count * number :], math.ceil(math.log2(total)), count)] = values
        return row
    drawn, start = hashes(key, total), 0
    for n in lengths:
        by = drawn[start : start + n]
        start += n
        if isinstance(how, Quantise):
            size = math.ceil(n * how.bits / 8)
            unit = np.frombuffer(data[:number], dtype)[0]
            level = unpacked(data[number : number + size], how.bits, n) - 2 ** (how.bits - 1) + 1
            found.append(level * unit)
            data = data[number + size :]
        else:
            size = count_of(how.share, n)
            buckets, data = np.frombuffer(data[: size * number], dtype), data[size * number :]
            sign = 1 - 2 * (by & np.uint64(1)).astype(np.int64)
            found.append(sign * buckets[((by >> np.uint64(1)) * np.uint64(size)) >> np.uint64(31)])
    assert not data
    return np.concatenate(found).astype(dtype)
