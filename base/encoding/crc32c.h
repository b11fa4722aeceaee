/*
 * CRC-32C (Castagnoli), by the processor's own instruction where it has one. What TFRecord files and TensorBoard's event
 * files carry, there in a masked form, as the CRC of something that holds CRCs would be weak:
 * tensorflow/core/lib/hash/crc32c.h.
 */
#ifndef BASE_ENCODING_CRC32C_H
#define BASE_ENCODING_CRC32C_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Any thread. */
uint32_t crc32c(const void *bytes, size_t size);
uint32_t crc32c_masked(const void *bytes, size_t size);

/* The readable twin, eight bits at a time from a table; also what other processors use. */
uint32_t crc32c_reference(const void *bytes, size_t size);

/* True if crc32c uses the instruction. */
bool crc32c_is_hardware(void);

#endif
