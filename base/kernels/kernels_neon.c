/* The kernels for aarch64: every such processor has NEON. */
#include <arm_neon.h>

#include "base/kernels/kernels_bytes.h"
#include "base/kernels/kernels_loops.h"

#define KERNELS_TABLE      kernels_neon
#define KERNELS_NAME       "neon"
#define KERNELS_STRIP      64
#define KERNELS_DENSE_FROM 0.5f
#define VEC_LANES          4
#define VEC_COLUMNS        4
#define VEC_TILE           24
#define VEC_UNROLL         1
#define VEC_SETS           2

#define VEC static inline __attribute__((always_inline))

typedef float32x4_t vec;

VEC vec vec_load(const float *from)
{
    return vld1q_f32(from);
}

VEC void vec_store(float *to, vec a)
{
    vst1q_f32(to, a);
}

VEC vec vec_zero(void)
{
    return vdupq_n_f32(0.0f);
}

VEC vec vec_set(float a)
{
    return vdupq_n_f32(a);
}

VEC vec vec_broadcast(const float *from)
{
    return vld1q_dup_f32(from);
}

VEC vec vec_fma(vec a, vec b, vec c)
{
    return vfmaq_f32(c, a, b);
}

VEC vec vec_add(vec a, vec b)
{
    return vaddq_f32(a, b);
}

VEC vec vec_sub(vec a, vec b)
{
    return vsubq_f32(a, b);
}

VEC vec vec_mul(vec a, vec b)
{
    return vmulq_f32(a, b);
}

VEC vec vec_div(vec a, vec b)
{
    return vdivq_f32(a, b);
}

VEC vec vec_max(vec a, vec b)
{
    return vmaxq_f32(a, b);
}

VEC vec vec_min(vec a, vec b)
{
    return vminq_f32(a, b);
}

VEC vec vec_round(vec a)
{
    return vrndnq_f32(a);
}

/* a x 2^n, -127 <= n <= 127: the exponent's bits are built by hand; 2^-127 becomes 0. */
VEC vec vec_scale(vec a, vec n)
{
    int32x4_t exponent = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
    return vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
}

/* a < b ? then : otherwise, lane by lane */
VEC vec vec_select_less(vec a, vec b, vec then, vec otherwise)
{
    return vbslq_f32(vcltq_f32(a, b), then, otherwise);
}

/* The first `count` lanes of a, the others of b. */
VEC vec vec_first(int count, vec a, vec b)
{
    static const int32_t lanes[VEC_LANES] = {0, 1, 2, 3};
    return vbslq_f32(vcltq_s32(vld1q_s32(lanes), vdupq_n_s32(count)), a, b);
}

VEC float vec_sum(vec a)
{
    return vaddvq_f32(a);
}

VEC float vec_largest(vec a)
{
    return vmaxvq_f32(a);
}

static const uint64_t positions[256] = {POSITIONS_TABLE};

/* value[0, 8) = bytes x scale */
VEC void store_scaled(float *value, uint8x8_t from, float scale)
{
    uint16x8_t wide = vmovl_u8(from);
    vst1q_f32(value, vmulq_n_f32(vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))), scale));
    vst1q_f32(value + 4, vmulq_n_f32(vcvtq_f32_u32(vmovl_u16(vget_high_u16(wide))), scale));
}

static int simd_compress(int count, const uint8_t *even, const uint8_t *odd, int stride, uint32_t *offset, float *value)
{
    static const uint8_t bits[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x8_t bit = vld1_u8(bits);
    int entries = 0;
    for (int i = 0; i < count; i += 8) {
        uint8x8_t a = vld1_u8(even + i), b = vld1_u8(odd + i), either = vorr_u8(a, b);
        unsigned set = vaddv_u8(vand_u8(vtst_u8(either, either), bit));
        uint8x8_t order = vcreate_u8(positions[set]);
        uint8x8x2_t both = vzip_u8(vtbl1_u8(a, order), vtbl1_u8(b, order));
        store_scaled(value + 2 * entries, both.val[0], 1.0f / 255.0f);
        store_scaled(value + 2 * entries + 8, both.val[1], 1.0f / 255.0f);
        uint16x8_t at = vaddq_u16(vmovl_u8(order), vdupq_n_u16((uint16_t)i));
        vst1q_u32(offset + entries, vmulq_n_u32(vmovl_u16(vget_low_u16(at)), (uint32_t)stride));
        vst1q_u32(offset + entries + 4, vmulq_n_u32(vmovl_u16(vget_high_u16(at)), (uint32_t)stride));
        entries += __builtin_popcount(set);
    }
    return pad_entries(entries, offset, value);
}

#include "base/kernels/kernels_simd.h"
