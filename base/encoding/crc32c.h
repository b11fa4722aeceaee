/*
 * CRC-32C (Castagnoli), with the processor's CRC instruction where there is one. TFRecord and TensorBoard event files
 * store it masked, since a CRC over data that contains CRCs is weak: tensorflow/core/lib/hash/crc32c.h.
 */
#ifndef BASE_ENCODING_CRC32C_H
#define BASE_ENCODING_CRC32C_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Any thread. */
uint32_t crc32c(const void *bytes, size_t size);
uint32_t crc32c_masked(const void *bytes, size_t size);

/* The reference: eight bits at a time from a table. Also used on processors without the instruction. */
uint32_t crc32c_reference(const void *bytes, size_t size);

/* True if crc32c uses the instruction. */
bool crc32c_is_hardware(void);

#endif
