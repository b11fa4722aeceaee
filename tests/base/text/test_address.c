/* Valid and invalid addresses. */
#include "base/text/address.h"
#include "tests/check.h"

#include <string.h>

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

TEST(good_ones)
{
    accept("a:1", "a", 1, false);
    accept("ps-0.example.org:2222", "ps-0.example.org", 2222, false);
    accept("my_ps:65535", "my_ps", 65535, false);
    accept("10.0.0.1:2222", "10.0.0.1", 2222, false);
    accept("[::1]:2222", "::1", 2222, true);
    accept("[fe80::1:2]:1", "fe80::1:2", 1, true);
}

TEST(bad_ones)
{
    refuse("", "empty");
    refuse("a", "missing port");
    refuse(":1", "the host");
    refuse("a:", "the port");
    refuse("a:0", "the port");
    refuse("a:65536", "the port");
    refuse("a:+1", "the port");
    refuse("a:1 ", "a blank");
    refuse(" a:1", "a blank");
    refuse("a:70000", "from 1 to 65535");
    refuse("a:http", "from 1 to 65535");
    refuse("http://a:1", "a scheme; write host:port without http://");
    refuse("grpc://[::1]:1", "a scheme");
    refuse("a:1/path", "a path");
    refuse("me@a:1", "a user");
    refuse("a:1:2", "more than one colon");
    refuse("300.1.1.1:1", "not an IPv4 address");
    refuse("1.2.3:1", "not an IPv4 address");
    refuse("m\xc3\xbcnchen:1", "xn--");
    refuse("a:000001", "the port");
    refuse("a b:1", "a blank");
    refuse("-a:1", "not a host name");
    refuse("a..b:1", "not a host name");
    refuse("::1:2222", "[address]:port");
    refuse("fe80::7:2222", "here [fe80::7]:2222");
    refuse("fe80::7", "[address]:port");
    refuse("[::1]", "missing port");
    refuse("[::1", "the ] is missing");
    refuse("[fe80::1%eth0]:1", "zone");
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

static void listens(const char *text, const char *host, int port)
{
    struct address address;
    struct error error;
    if (!address_parse_bind(text, &address, &error)) {
        fail_msg("%s: %s", text, error.text);
    }
    assert_string_equal(address.host, host);
    assert_int_equal(address.port, port);
}

static void listens_nowhere(const char *text, const char *reason)
{
    struct address address;
    struct error error;
    assert_false(address_parse_bind(text, &address, &error));
    assert_non_null(strstr(error.text, reason));
}

TEST(what_to_listen_on)
{
    listens("", "", 0);
    listens("10.0.0.1", "10.0.0.1", 0);
    listens("gw", "gw", 0);
    listens("10.0.0.1:2222", "10.0.0.1", 2222);
    listens("gw:1", "gw", 1);
    listens(":2222", "", 2222);
    listens("::", "::", 0);
    listens("::1", "::1", 0);
    listens("[::1]", "::1", 0);
    listens("[::1]:2222", "::1", 2222);
    listens_nowhere("gw:", "the port is missing");
    listens_nowhere(":0", "from 1 to 65535");
    listens_nowhere(":", "the port is missing");
    listens_nowhere("gw:70000", "from 1 to 65535");
    listens_nowhere("tcp://gw", "a scheme");
    listens_nowhere("a b", "a blank");
    listens_nowhere("[::g]", "not an IPv6");
}

int main(void)
{
    return check_run(NULL, NULL);
}
