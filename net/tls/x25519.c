/*
 * Key exchange on Curve25519 by libsodium. mbedTLS's own multiplication takes about twenty times as long, and was
 * nearly half of a handshake, of which a restarting fleet makes several per member at once.
 *
 * mbedTLS has a hook for the shared secret, but none for the public key before it: so the linker replaces the function
 * that computes both (--wrap in the Makefile). Other curves go to mbedTLS, as before.
 */
#include <assert.h>

#include <mbedtls/ecp.h>
#include <sodium.h>

#define BYTES crypto_scalarmult_curve25519_BYTES

static_assert(crypto_scalarmult_curve25519_SCALARBYTES == BYTES, "numbers and points are of the same length");

/*
 * As declared in <mbedtls/ecp.h>, errors and all; `random` is for blinding, while libsodium runs in constant time
 * anyway.
 */
typedef int ecp_random(void *context, unsigned char *bytes, size_t size);
int __real_mbedtls_ecp_mul(mbedtls_ecp_group *group, mbedtls_ecp_point *product, const mbedtls_mpi *number,
                           const mbedtls_ecp_point *point, ecp_random *random, void *context);
int __wrap_mbedtls_ecp_mul(mbedtls_ecp_group *group, mbedtls_ecp_point *product, const mbedtls_mpi *number,
                           const mbedtls_ecp_point *point, ecp_random *random, void *context);
int __wrap_mbedtls_ecp_mul_restartable(mbedtls_ecp_group *group, mbedtls_ecp_point *product, const mbedtls_mpi *number,
                                       const mbedtls_ecp_point *point, ecp_random *random, void *context,
                                       mbedtls_ecp_restart_ctx *restart);

static int multiply(mbedtls_ecp_group *group, mbedtls_ecp_point *product, const mbedtls_mpi *number,
                    const mbedtls_ecp_point *point)
{
    uint8_t factor[BYTES], from[BYTES], to[BYTES];
    size_t size;
    int status = mbedtls_ecp_check_privkey(group, number);
    if (status == 0) {
        status = mbedtls_mpi_write_binary_le(number, factor, BYTES);
    }
    if (status == 0) {
        status = mbedtls_ecp_point_write_binary(group, point, MBEDTLS_ECP_PF_COMPRESSED, &size, from, BYTES);
    }
    if (status == 0 && crypto_scalarmult_curve25519(to, factor, from) != 0) {
        status = MBEDTLS_ERR_ECP_INVALID_KEY; /* a point of small order: RFC 7748, section 6.1 */
    }
    if (status == 0) {
        status = mbedtls_ecp_point_read_binary(group, product, to, BYTES);
    }
    sodium_memzero(factor, sizeof factor);
    sodium_memzero(to, sizeof to);
    return status;
}

int __wrap_mbedtls_ecp_mul(mbedtls_ecp_group *group, mbedtls_ecp_point *product, const mbedtls_mpi *number,
                           const mbedtls_ecp_point *point, ecp_random *random, void *context)
{
    if (mbedtls_ecp_get_type(group) == MBEDTLS_ECP_TYPE_MONTGOMERY) { /* only X25519 is compiled in */
        return multiply(group, product, number, point);
    }
    return __real_mbedtls_ecp_mul(group, product, number, point, random, context);
}

/* Nothing is restartable in this build: the same. */
int __wrap_mbedtls_ecp_mul_restartable(mbedtls_ecp_group *group, mbedtls_ecp_point *product, const mbedtls_mpi *number,
                                       const mbedtls_ecp_point *point, ecp_random *random, void *context,
                                       mbedtls_ecp_restart_ctx *restart)
{
    (void)restart;
    return __wrap_mbedtls_ecp_mul(group, product, number, point, random, context);
}
