/* Valid and invalid addresses. */
#include "base/text/address.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

static void accept(const char *text, const char *host, int port, bool is_ipv6)
{
    struct address address;
    struct error error;
    if (!address_parse(text, &address, &error)) {
        fail_msg("%s: %s", text, error.text);
    }
    assert_string_equal(address.host, host);
    assert_int_equal(address.port, port);
    assert_int_equal(address.is_ipv6, is_ipv6);
}

static void refuse(const char *text, const char *reason)
{
    struct address address;
    struct error error;
    if (address_parse(text, &address, &error)) {
        fail_msg("accepted: %s", text);
    }
    assert_non_null(strstr(error.text, reason));
}

static void good_ones(void **state)
{
    (void)state;
    accept("a:1", "a", 1, false);
    accept("ps-0.example.org:2222", "ps-0.example.org", 2222, false);
    accept("my_ps:65535", "my_ps", 65535, false);
    accept("10.0.0.1:2222", "10.0.0.1", 2222, false);
    accept("[::1]:2222", "::1", 2222, true);
    accept("[fe80::1:2]:1", "fe80::1:2", 1, true);
}

static void bad_ones(void **state)
{
    (void)state;
    refuse("", "missing port");
    refuse("a", "missing port");
    refuse(":1", "the host");
    refuse("a:", "the port");
    refuse("a:0", "the port");
    refuse("a:65536", "the port");
    refuse("a:+1", "the port");
    refuse("a:1 ", "the port");
    refuse("a:000001", "the port");
    refuse("a b:1", "not a host name");
    refuse("-a:1", "not a host name");
    refuse("a..b:1", "not a host name");
    refuse("::1:2222", "[address]:port");
    refuse("[::1]", "[address]:port");
    refuse("[::1", "[address]:port");
    refuse("[]:1", "the host");
    refuse("[a]:1", "not an IPv6");
    refuse("[::g]:1", "not an IPv6");
    char text[ADDRESS_MAX_HOST + 8];
    memset(text, 'a', sizeof text);
    memcpy(text + ADDRESS_MAX_HOST + 1, ":1", 3);
    refuse(text, "the host");
    memcpy(text + 64, ":1", 3);
    refuse(text, "not a host name");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_ones),
        cmocka_unit_test(bad_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
