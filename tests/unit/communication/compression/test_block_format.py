import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainflow.communication.compression.block_format import (
    BF16,
    FP8,
    HEADER_BYTES,
    INT4,
    INT8,
    BlockFormat,
    cut,
)
from trainflow.errors import ConfigError


@pytest.mark.parametrize("block", [0, 1, 16, 48, 100, 8192, -256])
def test_a_block_must_be_a_power_of_two_within_bounds(block):
    with pytest.raises(ConfigError, match=f"got a block of {block} elements, expected a power"):
        BlockFormat(8, block)


@pytest.mark.parametrize("bits", [1, 2, 16])
def test_other_widths_are_refused(bits):
    with pytest.raises(ConfigError, match=f"got numbers of {bits} bits, expected integers of 8"):
        BlockFormat(bits, 128)


def test_floats_have_eight_bits():
    with pytest.raises(ConfigError, match="got numbers of 4 bits"):
        BlockFormat(4, 128, is_float=True)


@pytest.mark.parametrize(
    ("block_format", "bytes_an_element"), [(INT8, 1.0156), (FP8, 1.0156), (INT4, 0.531)]
)
def test_a_message_has_the_size_of_the_formula(block_format, bytes_an_element):
    size = block_format.layout(1_000_000).num_bytes
    assert size == pytest.approx(bytes_an_element * 1_000_000, rel=1e-3)


def test_bfloat16_sends_no_scales():
    layout = BF16.layout(1000)
    assert (layout.scales_end, layout.codes_at) == (HEADER_BYTES, HEADER_BYTES)
    assert layout.codes_end - layout.codes_at == 2000
    assert BF16.name == "bf16"


@given(st.integers(1, 10_000), st.sampled_from([4, 8]), st.sampled_from([32, 128, 1024]))
def test_parts_of_a_message_follow_each_other_aligned(num_elements, bits, block):
    block_format = BlockFormat(bits, block)
    layout = block_format.layout(num_elements)
    assert layout.scales_end == HEADER_BYTES + 4 * block_format.num_scales(num_elements)
    assert layout.scales_end <= layout.codes_at
    assert layout.codes_end - layout.codes_at == block_format.num_code_bytes(num_elements)
    assert layout.codes_end <= layout.num_bytes
    assert layout.codes_at % HEADER_BYTES == layout.num_bytes % HEADER_BYTES == 0


@given(
    st.integers(0, 100_000),
    st.integers(1, 9),
    st.integers(1, 40_000),
    st.sampled_from([32, 256, 4096]),
)
def test_a_bucket_is_cut_into_all_of_it_once(num_elements, world_size, chunk_elements, block):
    chunks = cut(num_elements, world_size, chunk_elements, block)
    assert all(len(pieces) == world_size for pieces in chunks)
    flat = [piece for pieces in chunks for piece in pieces]
    assert [i for piece in flat for i in (piece.start, piece.stop) if piece.size] == sorted(
        i for piece in flat for i in (piece.start, piece.stop) if piece.size
    )
    assert sum(piece.size for piece in flat) == num_elements
    assert all(piece.start % block == 0 for piece in flat if piece.size)
    for pieces in chunks:  # what the first has decides how large the chunk's messages are
        assert all(piece.size <= pieces[0].size for piece in pieces)


def test_little_is_added_to_fill_pieces_up():
    chunks = cut(25_165_824, 4, 1024 * 1024, 256)
    assert len(chunks) == 24
    assert sum(pieces[0].size * 4 for pieces in chunks) == 25_165_824
