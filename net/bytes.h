/*
 * Numbers in unaligned bytes: little-endian ones for our own formats, big-endian ones for others'. Compilers turn each
 * into one load or store.
 */
#ifndef NET_BYTES_H
#define NET_BYTES_H

#include <stdint.h>

static inline void put_le16(uint8_t *bytes, uint16_t value)
{
    bytes[0] = (uint8_t)value;
    bytes[1] = (uint8_t)(value >> 8);
}

static inline void put_le32(uint8_t *bytes, uint32_t value)
{
    put_le16(bytes, (uint16_t)value);
    put_le16(bytes + 2, (uint16_t)(value >> 16));
}

static inline void put_le64(uint8_t *bytes, uint64_t value)
{
    put_le32(bytes, (uint32_t)value);
    put_le32(bytes + 4, (uint32_t)(value >> 32));
}

static inline uint16_t get_le16(const uint8_t *bytes)
{
    return (uint16_t)(bytes[0] | bytes[1] << 8);
}

static inline uint32_t get_le32(const uint8_t *bytes)
{
    return get_le16(bytes) | (uint32_t)get_le16(bytes + 2) << 16;
}

static inline uint32_t get_be32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static inline uint64_t get_le64(const uint8_t *bytes)
{
    return get_le32(bytes) | (uint64_t)get_le32(bytes + 4) << 32;
}

#endif
