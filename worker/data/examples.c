/* Operations on sets of examples, shared by all sources and users. */
#include "worker/data/examples.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static size_t pixels_of(const struct examples *examples)
{
    return (size_t)examples->height * (size_t)examples->width;
}

static int bins_of(const struct examples *examples)
{
    int bins = 0;
    for (int i = 0; i < examples->piecewise; i++) {
        bins += examples->bins[i];
    }
    return bins;
}

int examples_dense(const struct examples *examples)
{
    return examples->numbers > 0 ? examples->numbers : bins_of(examples);
}

struct examples examples_view(const struct examples *examples, enum number_view view)
{
    struct examples shown = *examples;
    const int places = examples->inputs - examples_dense(examples);
    if (view == VIEW_RAW) {
        shown.piecewise = 0;
        shown.bins = NULL;
        shown.positions = NULL;
    } else {
        shown.numbers = 0;
        shown.values = NULL;
    }
    shown.inputs = examples_dense(&shown) + places;
    return shown;
}

bool examples_create(struct examples *examples, const struct examples *like, int count)
{
    const size_t rows = (size_t)count, all = rows > 0 ? rows : 1;
    *examples = (struct examples){.count = count,
                                  .height = like->height,
                                  .width = like->width,
                                  .channels = like->channels,
                                  .inputs = like->inputs,
                                  .numbers = like->numbers,
                                  .piecewise = like->piecewise,
                                  .bins = like->bins,
                                  .codes = like->codes,
                                  .classes = like->classes,
                                  .targets = like->targets,
                                  .target_means = like->target_means,
                                  .target_scales = like->target_scales,
                                  .is_weighted = like->is_weighted};
    bool there = true;
    if (!examples_are_rows(like)) {
        examples->images = calloc(1, rows * pixels_of(like) + EXAMPLES_PADDING);
        there = examples->images;
    }
    if (like->numbers > 0) {
        examples->values = memory_zeroed(all * (size_t)like->numbers, sizeof *examples->values);
        there = there && examples->values;
    }
    if (like->piecewise > 0) {
        examples->positions = memory_zeroed(all * (size_t)like->piecewise, sizeof *examples->positions);
        there = there && examples->positions;
    }
    if (like->codes > 0) {
        const size_t bytes = all * (size_t)like->codes * sizeof *examples->places;
        examples->places = malloc(bytes);
        there = there && examples->places;
        if (examples->places) {
            memset(examples->places, 0xFF, bytes);
        }
    }
    if (like->targets > 0) {
        examples->target_values = calloc(all * (size_t)like->targets, sizeof *examples->target_values);
        there = there && examples->target_values;
    } else {
        examples->labels = calloc(all, sizeof *examples->labels);
        there = there && examples->labels;
    }
    if (like->is_weighted) {
        examples->weights = calloc(all, sizeof *examples->weights);
        there = there && examples->weights;
    }
    if (!there) {
        examples_free(examples);
    }
    return there;
}

size_t examples_bytes(const struct examples *like)
{
    const size_t learnt = like->targets > 0 ? (size_t)like->targets : 1;
    return (examples_are_rows(like) ? 0 : pixels_of(like)) +
           sizeof(float) * ((size_t)like->numbers + (size_t)like->piecewise + (size_t)like->codes + learnt +
                            (like->is_weighted ? 1 : 0));
}

/* `count` elements of `size` bytes, between arrays that both exist or both don't. */
static void copy_part(void *to, int at, const void *from, int first, int count, size_t size)
{
    if (from && to && count > 0) {
        memcpy((char *)to + (size_t)at * size, (const char *)from + (size_t)first * size, (size_t)count * size);
    }
}

void examples_copy(struct examples *to, int at, const struct examples *from, int first, int count)
{
    copy_part(to->images, at, from->images, first, count, pixels_of(from));
    copy_part(to->values, at, from->values, first, count, (size_t)from->numbers * sizeof *to->values);
    copy_part(to->positions, at, from->positions, first, count, (size_t)from->piecewise * sizeof *to->positions);
    copy_part(to->places, at, from->places, first, count, (size_t)from->codes * sizeof *to->places);
    copy_part(to->labels, at, from->labels, first, count, sizeof *to->labels);
    copy_part(to->target_values, at, from->target_values, first, count,
              (size_t)from->targets * sizeof *to->target_values);
    copy_part(to->weights, at, from->weights, first, count, sizeof *to->weights);
}

struct examples examples_part(const struct examples *examples, int first, int count)
{
    struct examples part = *examples;
    size_t skip = (size_t)first;
    part.count = count;
    part.images = part.images ? part.images + skip * pixels_of(&part) : NULL;
    part.values = part.values ? part.values + skip * (size_t)part.numbers : NULL;
    part.positions = part.positions ? part.positions + skip * (size_t)part.piecewise : NULL;
    part.places = part.places ? part.places + skip * (size_t)part.codes : NULL;
    part.labels = part.labels ? part.labels + skip : NULL;
    part.target_values = part.target_values ? part.target_values + skip * (size_t)part.targets : NULL;
    part.weights = part.weights ? part.weights + skip : NULL;
    return part;
}

void examples_free(struct examples *examples)
{
    free(examples->images);
    free(examples->values);
    free(examples->positions);
    free(examples->places);
    free(examples->labels);
    free(examples->target_values);
    free(examples->weights);
    memset(examples, 0, sizeof *examples);
}
