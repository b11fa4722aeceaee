/* Philox4x32-10 against the known answers that its authors publish with Random123. */
#include "base/random/philox.h"
#include "tests/check.h"

static void check(const uint32_t counter[4], const uint32_t key[2], const uint32_t expected[4])
{
    struct philox_block block =
        philox((struct philox_key){{key[0], key[1]}}, counter[0], counter[1], counter[2], counter[3]);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(block.word[i], expected[i]);
    }
}

TEST(known_answers)
{
    check((const uint32_t[4]){0, 0, 0, 0}, (const uint32_t[2]){0, 0},
          (const uint32_t[4]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    check((const uint32_t[4]){0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
          (const uint32_t[2]){0xffffffff, 0xffffffff},
          (const uint32_t[4]){0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    check((const uint32_t[4]){0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
          (const uint32_t[2]){0xa4093822, 0x299f31d0},
          (const uint32_t[4]){0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(uniform_covers_the_unit_interval)
{
    assert_true(philox_uniform(0) == 0.0f);
    assert_true(philox_uniform(0xffffffff) < 1.0f);
    assert_true(philox_uniform(0x80000000) == 0.5f);
}

int main(void)
{
    return check_run(NULL, NULL);
}
