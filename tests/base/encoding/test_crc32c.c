/* CRC-32C against the vectors of RFC 3720, B.4, and the instruction against the table. */
#include "base/encoding/crc32c.h"
#include "tests/check.h"

#include <string.h>

#include "tests/random.h"

TEST(published_vectors)
{
    uint8_t bytes[32];
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(crc32c(bytes, sizeof bytes), 0x8A9136AA);
    memset(bytes, 0xFF, sizeof bytes);
    assert_int_equal(crc32c(bytes, sizeof bytes), 0x62A8AB43);
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)i;
    }
    assert_int_equal(crc32c(bytes, sizeof bytes), 0x46DD794E);
    assert_int_equal(crc32c("123456789", 9), 0xE3069283);
    assert_int_equal(crc32c("", 0), 0);
    assert_int_equal(crc32c_masked("", 0), 0xA282EAD8);
    assert_int_equal(crc32c_reference("123456789", 9), 0xE3069283);
}

TEST(instruction_and_table_agree)
{
    struct test_random random = test_random_begin(__func__);
    uint8_t bytes[2400];
    if (!crc32c_is_hardware()) {
        print_message("this processor has no CRC-32C instruction\n");
        skip();
    }
    for (int i = 0; i < 2400; i++) {
        bytes[i] = (uint8_t)test_random_next(&random);
    }
    for (size_t size = 0; size < 2380; size++) {
        size_t at = size % 16;
        assert_int_equal(crc32c(bytes + at, size), crc32c_reference(bytes + at, size));
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
