from octavo_api.blocks import HashSpace, chain_hashes, low64, unpack
from octavo_router.routing.chain import hash_prompt

TOKENS = list(range(100))


def test_the_engine_gets_all_hashes_and_the_index_every_stride_th():
    hashes = chain_hashes(HashSpace("m", "f", 16).root("s"), TOKENS, 16)
    for stride in (1, 2, 4, 9):
        chain = hash_prompt(TOKENS, HashSpace("m", "f", 16, stride), "s")
        assert unpack(chain.packed) == hashes
        assert chain.keys == tuple(low64(each) for each in hashes[stride - 1 :: stride])


def test_prompts_without_a_full_block_have_keys_of_their_own():
    space = HashSpace("m", "f", 16, 1)
    chains = [hash_prompt(TOKENS[start : start + 5], space, "") for start in range(20)]
    assert all(chain.keys == () and chain.packed == b"" for chain in chains)
    assert len({chain.tail for chain in chains}) == 20
    assert hash_prompt([], space, "").keys == ()
