/*
 * A digit is one of several styles, distorted like handwriting: its points are moved, then a smooth warp and an affine
 * map are applied; the result is fitted into the middle 20x20 pixels and centred by its ink, as in MNIST, clear of the
 * border. Splines through the points are drawn by distance to the line, so that edges are soft and empty
 * pixels stay zero.
 *
 * Only correctly rounded arithmetic is used (no sine, exponential or logarithm), so the images are the same bits on
 * every machine and with every C library.
 */
#include "worker/data/synth.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/random/philox.h"
#include "base/threads.h"

enum {
    SPAN_PIECES = 6,
    MAX_VERTICES = GLYPH_MAX_POINTS * SPAN_PIECES + 1,
    GROUP = 8,                   /* pixels inked at once */
    STRIDE = SYNTH_SIDE + GROUP, /* of the rows of ink: the last group of a row may start at its last pixel */
};

/* The random numbers of one image, in the order they are drawn. */
struct draws {
    struct philox_key key;
    uint32_t number, stream, next;
    struct philox_block block;
};

static uint32_t draw_word(struct draws *draws)
{
    if (draws->next % 4 == 0) {
        draws->block = philox(draws->key, draws->number, draws->next / 4, 0, draws->stream);
    }
    return draws->block.word[draws->next++ % 4];
}

static float draw_between(struct draws *draws, float low, float high)
{
    return low + (high - low) * philox_uniform(draw_word(draws));
}

/* Approximately normal with mean 0: the sum of four uniform numbers; never beyond 3.5 standard deviations. */
static float draw_normal(struct draws *draws, float deviation)
{
    float sum = -2.0f;
    for (int i = 0; i < 4; i++) {
        sum += philox_uniform(draw_word(draws));
    }
    return sum * (1.7320508f * deviation); /* variance of the sum: 4/12 */
}

/* A point of the pen's path; lifted: no line from here to the next vertex. */
struct vertex {
    float x, y;
    bool lifted;
};

static const struct glyph *draw_style(struct draws *draws, int label)
{
    float at = draw_between(draws, 0.0f, 100.0f);
    const struct glyph *style = glyphs[label];
    for (int i = 0; i + 1 < GLYPH_MAX_STYLES && style[1].weight > 0 && at >= (float)style->weight; i++) {
        at -= (float)style->weight;
        style++;
    }
    return style;
}

/* Jitters the points of a style, centred on the origin, in units of the digit's height. */
static void bend(struct draws *draws, const struct glyph *style, struct vertex *points)
{
    float bow_x = draw_normal(draws, 0.19f), bow_y = draw_normal(draws, 0.15f);
    float fan_x = draw_normal(draws, 0.22f), fan_y = draw_normal(draws, 0.22f);
    float jitter = draw_between(draws, 0.013f, 0.052f);
    float lean = 0.12f + draw_normal(draws, 0.25f), turn = draw_normal(draws, 0.145f);
    float wide = 1.0f + draw_normal(draws, 0.17f);
    float cosine = 1.0f - turn * turn / 2, sine = turn - turn * turn * turn / 6;
    for (int i = 0; i < style->count; i++) {
        float x = (float)style->points[i].x / 100 - 0.5f + draw_normal(draws, jitter);
        float y = (float)style->points[i].y / 100 - 0.5f + draw_normal(draws, jitter);
        float u = wide * (x + bow_x * (y * y - 0.1f) + fan_x * x * y) - lean * y;
        float v = y + bow_y * (x * x - 0.1f) + fan_y * x * y;
        points[i] = (struct vertex){cosine * u - sine * v, sine * u + cosine * v, style->points[i].turn == GLYPH_LIFT};
    }
}

/* The Catmull-Rom spline from b to c, whose neighbours are a and d, at 0 <= t <= 1. */
static float spline(float a, float b, float c, float d, float t)
{
    return b + 0.5f * t * (c - a + t * (2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a)));
}

/* Smooths the path through the points of the style; returns the number of vertices. */
static int smooth(const struct glyph *style, const struct vertex *points, struct vertex *way)
{
    int count = 0;
    for (int i = 0; i < style->count; i++) {
        if (style->points[i].turn == GLYPH_LIFT) {
            way[count++] = points[i];
            continue;
        }
        bool begins = i == 0 || style->points[i - 1].turn == GLYPH_LIFT || style->points[i].turn == GLYPH_CORNER;
        bool ends = style->points[i + 1].turn != GLYPH_SMOOTH;
        const struct vertex *b = points + i, *c = b + 1;
        const struct vertex *a = begins ? b : b - 1, *d = ends ? c : c + 1;
        for (int piece = 0; piece < SPAN_PIECES; piece++) {
            float t = (float)piece / SPAN_PIECES;
            way[count++] = (struct vertex){spline(a->x, b->x, c->x, d->x, t), spline(a->y, b->y, c->y, d->y, t), false};
        }
    }
    return count;
}

/* How far to shift the range [low, high] so that it stays `margin` away from the border. */
static float push_inside(float low, float high, float margin)
{
    float first = margin, last = (float)(SYNTH_SIDE - 1) - margin;
    return low < first ? first - low : high > last ? last - high : 0;
}

/* Scales the path to pixels: its longer side to `size`, its ink (assumed evenly thick) centred, then shifted. */
static void fit(struct vertex *way, int count, float size, float margin, float move_x, float move_y)
{
    assert(count > 0);
    float left = way[0].x, right = left, top = way[0].y, bottom = top;
    float ink = 1e-6f, ink_x = 0, ink_y = 0;
    for (int i = 0; i < count; i++) {
        left = fminf(left, way[i].x);
        right = fmaxf(right, way[i].x);
        top = fminf(top, way[i].y);
        bottom = fmaxf(bottom, way[i].y);
        if (i + 1 < count && !way[i].lifted) {
            float dx = way[i + 1].x - way[i].x, dy = way[i + 1].y - way[i].y;
            float length = sqrtf(dx * dx + dy * dy);
            ink += length;
            ink_x += length * (way[i].x + way[i + 1].x) / 2;
            ink_y += length * (way[i].y + way[i + 1].y) / 2;
        }
    }
    float scale = size / fmaxf(right - left, bottom - top);
    float shift_x = (float)(SYNTH_SIDE - 1) / 2 + move_x - ink_x / ink * scale;
    float shift_y = (float)(SYNTH_SIDE - 1) / 2 + move_y - ink_y / ink * scale;
    shift_x += push_inside(left * scale + shift_x, right * scale + shift_x, margin);
    shift_y += push_inside(top * scale + shift_y, bottom * scale + shift_y, margin);
    for (int i = 0; i < count; i++) {
        way[i].x = way[i].x * scale + shift_x;
        way[i].y = way[i].y * scale + shift_y;
    }
}

struct pen {
    float radius; /* pixels, to the middle of the edge */
    float soft;   /* the edge fades over radius +- soft */
};

static int clamp_pixel(float at)
{
    return at < 0 ? 0 : at > SYNTH_SIDE - 1 ? SYNTH_SIDE - 1 : (int)at;
}

/*
 * Raises the ink (0..1) of all pixels near the line from a to b. Computes whole groups of pixels without a branch, so
 * that the compiler makes vectors of them; pixels outside the box, where rounding might leave a trace, stay unchanged.
 */
static void draw_line(float *ink, const struct vertex *a, const struct vertex *b, struct pen pen)
{
    float reach = pen.radius + pen.soft, slope = 1 / (2 * pen.soft);
    int first_x = clamp_pixel(fminf(a->x, b->x) - reach + 1), last_x = clamp_pixel(fmaxf(a->x, b->x) + reach);
    int first_y = clamp_pixel(fminf(a->y, b->y) - reach + 1), last_y = clamp_pixel(fmaxf(a->y, b->y) + reach);
    float dx = b->x - a->x, dy = b->y - a->y;
    float inverse = 1 / (dx * dx + dy * dy + 1e-12f);
    for (int y = first_y; y <= last_y; y++) {
        float py = (float)y - a->y;
        for (int group = first_x; group <= last_x; group += GROUP) {
            float *pixels = ink + y * STRIDE + group;
            for (int i = 0; i < GROUP; i++) {
                float px = (float)(group + i) - a->x;
                float along = (px * dx + py * dy) * inverse;
                along = along < 0 ? 0 : along;
                along = along > 1 ? 1 : along;
                float qx = px - along * dx, qy = py - along * dy;
                float distance = qx * qx + qy * qy;
                float here = (reach - sqrtf(distance)) * slope;
                here = distance < reach * reach ? here : 0;
                here = group + i <= last_x ? here : 0;
                pixels[i] = here > pixels[i] ? here : pixels[i];
            }
        }
    }
}

/* Turns ink to grey. Noise stays within the stroke, except for a few specks: paper without ink is exactly zero. */
static void expose(struct draws *draws, const float *ink, uint8_t *image)
{
    float grain = draw_between(draws, 0.0f, 0.22f);
    for (int i = 0; i < SYNTH_PIXELS; i++) {
        const float inked = ink[i / SYNTH_SIDE * STRIDE + i % SYNTH_SIDE];
        image[i] = 0;
        if (inked > 0) {
            float value = inked < 1 ? inked : 1;
            value *= 1 - grain * philox_uniform(draw_word(draws));
            image[i] = (uint8_t)(255 * value + 0.5f);
        }
    }
    int specks = draw_word(draws) % 4 == 0 ? (int)(draw_word(draws) % 6) : 0;
    for (int i = 0; i < specks; i++) {
        uint8_t *pixel = image + draw_word(draws) % SYNTH_PIXELS;
        uint8_t value = (uint8_t)(40 + draw_word(draws) % 160);
        *pixel = *pixel > value ? *pixel : value;
    }
}

int synth_draw(uint64_t seed, enum synth_split split, uint32_t number, uint8_t image[SYNTH_PIXELS])
{
    struct draws draws = {
        .key = philox_key(seed), .number = number, .stream = (uint32_t)RANDOM_SYNTHETIC << 28 | (uint32_t)split};
    struct vertex points[GLYPH_MAX_POINTS], way[MAX_VERTICES];
    float ink[SYNTH_SIDE * STRIDE] = {0};
    int label = (int)(draw_word(&draws) % SYNTH_CLASSES);
    const struct glyph *style = draw_style(&draws, label);
    bend(&draws, style, points);
    int count = smooth(style, points, way);
    struct pen pen = {draw_between(&draws, 0.75f, 1.75f), draw_between(&draws, 0.55f, 0.95f)};
    float size = draw_between(&draws, 15.5f, 19.0f);
    float move_x = draw_normal(&draws, 0.6f), move_y = draw_normal(&draws, 0.6f);
    fit(way, count, size, pen.radius + pen.soft + 1, move_x, move_y);
    float pressure = draw_normal(&draws, 0.15f);
    for (int i = 0; i + 1 < count; i++) {
        if (!way[i].lifted) {
            struct pen here = pen;
            here.radius *= 1 + pressure * (2 * (float)i / (float)count - 1);
            draw_line(ink, way + i, way + i + 1, here);
        }
    }
    expose(&draws, ink, image);
    return label;
}

struct fill_work {
    uint64_t seed;
    enum synth_split split;
    int count, threads;
    uint8_t *images;
    int32_t *labels;
};

static void fill_part(void *context, int thread)
{
    const struct fill_work *work = context;
    int first = (int)((int64_t)work->count * thread / work->threads);
    int end = (int)((int64_t)work->count * (thread + 1) / work->threads);
    for (int i = first; i < end; i++) {
        work->labels[i] = synth_draw(work->seed, work->split, (uint32_t)i, work->images + (size_t)i * SYNTH_PIXELS);
    }
}

bool synth_fill(uint64_t seed, enum synth_split split, int count, int threads, uint8_t *images, int32_t *labels,
                struct error *error)
{
    struct pool *pool;
    if (!pool_create(&pool, threads < POOL_MAX_THREADS ? threads : POOL_MAX_THREADS, error)) {
        return false;
    }
    struct fill_work work = {seed, split, count, pool_threads(pool), images, labels};
    pool_run(pool, fill_part, &work);
    pool_destroy(pool);
    return true;
}

/* --- The strokes of the ten digits --- */

/*
 * Drawn by hand after ordinary handwriting. Differences between writers are styles; random variation is left to
 * synth.c.
 */

#define S(x, y)                                                                                                        \
    {                                                                                                                  \
        x, y, GLYPH_SMOOTH                                                                                             \
    }
#define C(x, y)                                                                                                        \
    {                                                                                                                  \
        x, y, GLYPH_CORNER                                                                                             \
    }
#define L(x, y)                                                                                                        \
    {                                                                                                                  \
        x, y, GLYPH_LIFT                                                                                               \
    }

#define COUNT(...) (int)(sizeof((const struct glyph_point[]){__VA_ARGS__}) / sizeof(struct glyph_point))
#define GLYPH(weight_, ...)                                                                                            \
    {                                                                                                                  \
        .points = {__VA_ARGS__}, .count = COUNT(__VA_ARGS__), .weight = weight_                                        \
    }

const struct glyph glyphs[10][GLYPH_MAX_STYLES] = {
    {
        /* 0: round; begun inside; narrow and leaning, not quite closed */
        GLYPH(55, S(50, 0), S(26, 9), S(12, 34), S(12, 66), S(26, 92), S(50, 100), S(74, 92), S(88, 66), S(88, 34),
              S(74, 9), L(50, 0)),
        GLYPH(25, S(62, 8), S(40, 2), S(18, 28), S(14, 68), S(34, 98), S(64, 94), S(84, 60), S(80, 22), S(56, 2),
              L(42, 14)),
        GLYPH(20, S(66, 4), S(42, 14), S(24, 48), S(22, 84), S(40, 100), S(62, 84), S(78, 48), S(78, 16), L(62, 2)),
    },
    {
        /* 1: a stroke; with a flag; with flag and foot */
        GLYPH(62, S(50, 0), S(50, 50), L(50, 100)),
        GLYPH(25, S(28, 24), C(52, 0), S(52, 50), L(52, 100)),
        GLYPH(13, S(26, 22), C(52, 0), S(52, 50), L(52, 98), S(22, 100), L(82, 98)),
    },
    {
        /* 2: sharp below; looped below; flat, like a Z */
        GLYPH(48, S(14, 24), S(30, 4), S(58, 0), S(78, 18), S(72, 42), S(44, 70), C(12, 98), S(50, 97), L(88, 96)),
        GLYPH(38, S(16, 20), S(40, 0), S(68, 8), S(74, 32), S(54, 64), S(26, 92), S(8, 90), S(16, 76), S(40, 82),
              S(64, 96), L(90, 88)),
        GLYPH(14, S(12, 8), S(46, 4), S(74, 10), S(66, 36), S(40, 68), C(14, 96), L(84, 98)),
    },
    {
        /* 3: two bows that meet in a corner; with a small loop between; flat above */
        GLYPH(55, S(16, 14), S(42, 0), S(70, 12), S(66, 36), C(38, 48), S(68, 56), S(80, 76), S(60, 98), L(12, 92)),
        GLYPH(28, S(20, 8), S(50, 0), S(72, 18), S(54, 42), S(34, 50), S(44, 54), S(72, 62), S(74, 88), S(44, 100),
              L(10, 86)),
        GLYPH(17, S(16, 4), C(76, 2), C(42, 42), S(72, 54), S(78, 80), S(52, 100), L(12, 90)),
    },
    {
        /* 4: open above; closed to a triangle; round bowl; one stroke */
        GLYPH(52, S(20, 4), S(14, 34), C(14, 54), S(50, 54), L(80, 48), S(72, 0), S(68, 50), L(64, 100)),
        GLYPH(16, S(62, 0), S(34, 34), C(8, 66), S(50, 66), L(90, 64), S(62, 0), S(62, 50), L(60, 100)),
        GLYPH(20, S(22, 6), S(12, 34), S(26, 52), S(52, 48), L(72, 30), S(76, 2), S(72, 50), L(64, 100)),
        GLYPH(12, S(26, 0), S(12, 46), S(30, 56), S(60, 46), C(78, 4), S(70, 50), L(62, 100)),
    },
    {
        /* 5: in one stroke; bar added last; soft like an S */
        GLYPH(38, S(80, 2), C(32, 4), C(26, 42), S(54, 38), S(78, 58), S(68, 88), S(38, 100), L(10, 90)),
        GLYPH(42, S(34, 6), C(28, 42), S(56, 42), S(74, 66), S(58, 94), S(30, 100), L(8, 88), S(34, 6), S(58, 4),
              L(88, 0)),
        GLYPH(20, S(82, 6), S(50, 4), S(30, 20), S(38, 40), S(64, 54), S(70, 78), S(46, 98), L(10, 94)),
    },
    {
        /* 6: round; upright with a small loop; leaning, wide loop */
        GLYPH(48, S(66, 0), S(38, 22), S(18, 60), S(26, 92), S(52, 100), S(74, 82), S(66, 60), S(42, 58), L(22, 78)),
        GLYPH(30, S(38, 0), S(24, 40), S(20, 76), S(38, 100), S(62, 94), S(68, 74), S(48, 62), L(24, 76)),
        GLYPH(22, S(76, 2), S(46, 14), S(20, 50), S(14, 84), S(40, 100), S(74, 84), S(72, 56), S(46, 50), L(20, 70)),
    },
    {
        /* 7: plain; crossed; with a hook at its beginning; bent */
        GLYPH(48, S(10, 10), S(46, 6), C(82, 4), S(58, 46), L(42, 100)),
        GLYPH(14, S(14, 6), C(82, 4), S(58, 50), L(44, 100), S(30, 54), L(78, 48)),
        GLYPH(22, S(12, 26), C(16, 6), S(50, 8), C(82, 2), S(62, 44), L(50, 100)),
        GLYPH(16, S(10, 12), S(48, 2), S(78, 10), S(68, 36), S(50, 66), L(44, 100)),
    },
    {
        /* 8: drawn like an S; begun in the middle; two rings */
        GLYPH(58, S(74, 14), S(50, 0), S(24, 14), S(32, 38), S(62, 58), S(76, 82), S(50, 100), S(24, 84), S(36, 58),
              S(64, 38), L(74, 14)),
        GLYPH(26, S(50, 46), S(28, 24), S(46, 0), S(70, 14), S(58, 44), S(30, 68), S(28, 94), S(54, 100), S(68, 78),
              L(50, 48)),
        GLYPH(16, S(52, 0), S(30, 20), S(46, 46), S(70, 30), S(66, 6), L(52, 0), S(50, 46), S(24, 70), S(38, 98),
              S(68, 94), S(76, 66), L(50, 46)),
    },
    {
        /* 9: bent stem; straight stem; hooked below */
        GLYPH(46, S(72, 18), S(48, 4), S(22, 24), S(30, 48), S(54, 44), C(74, 16), S(70, 56), L(54, 100)),
        GLYPH(34, S(74, 14), S(44, 2), S(18, 24), S(30, 50), S(58, 44), C(76, 10), S(72, 54), L(70, 100)),
        GLYPH(20, S(70, 20), S(46, 0), S(22, 20), S(34, 46), S(60, 40), C(74, 14), S(76, 58), S(62, 94), S(34, 98),
              L(18, 86)),
    },
};
