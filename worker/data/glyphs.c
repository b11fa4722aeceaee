/*
 * Drawn by hand after ordinary handwriting. Differences between writers are styles; random variation is left to
 * synth.c.
 */
#include "worker/data/glyphs.h"

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
