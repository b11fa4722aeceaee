/* Test vectors from the bulk ciphers' specifications, in hexadecimal. */
#ifndef TESTS_NET_TLS_VECTORS_H
#define TESTS_NET_TLS_VECTORS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct vector {
    const char *key, *nonce, *additional, *plain, *cipher, *tag;
};

static inline size_t unhex(const char *hex, uint8_t bytes[256])
{
    size_t size = strlen(hex) / 2;
    for (size_t i = 0; i < size; i++) {
        unsigned value;
        if (sscanf(hex + 2 * i, "%2x", &value) != 1) {
            abort();
        }
        bytes[i] = (uint8_t)value;
    }
    return size;
}

/* McGrew and Viega, The Galois/Counter Mode of Operation (as submitted to NIST), test cases 13 to 16. */
#define GCM_KEY "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308"
#define GCM_PLAIN                                                                                                      \
    "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657" \
    "ba637b39"
#define GCM_CIPHER                                                                                                     \
    "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0a" \
    "bcc9f662"
static const struct vector gcm_vectors[] = {
    {"0000000000000000000000000000000000000000000000000000000000000000", "000000000000000000000000", "", "", "",
     "530f8afbc74536b9a963b4f1c4cb738b"},
    {"0000000000000000000000000000000000000000000000000000000000000000", "000000000000000000000000", "",
     "00000000000000000000000000000000", "cea7403d4d606b6e074ec5d3baf39d18", "d0d1c8a799996bf0265b98b5d48ab919"},
    {GCM_KEY, "cafebabefacedbaddecaf888", "", GCM_PLAIN "1aafd255", GCM_CIPHER "898015ad",
     "b094dac5d93471bdec1a502270e3cc6c"},
    {GCM_KEY, "cafebabefacedbaddecaf888", "feedfacedeadbeeffeedfacedeadbeefabaddad2", GCM_PLAIN, GCM_CIPHER,
     "76fc6ece0f4e1768cddf8853bb2d551b"},
};

enum { GCM_VECTORS = sizeof gcm_vectors / sizeof *gcm_vectors };

#endif
