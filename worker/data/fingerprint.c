/* Digests find changes, not forgers: they are 64 bits of the hash that tables are split by. */
#include "worker/data/fingerprint.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/text/text.h"
#include "worker/data/table/dictionary.h"
#include "worker/data/table/wide.h"

enum { SAMPLE_BYTES = 4 << 20 /* of pixels: takes less than a hundredth of the time in which MNIST is read */ };

static const uint64_t ODD = 0x9E3779B97F4A7C15u;

uint64_t fingerprint_of_row(const void *raw, size_t size)
{
    return dictionary_hash(raw, size);
}

static uint64_t chain(uint64_t digest, uint64_t next)
{
    return wide_mix(digest ^ next, ODD);
}

/* All labels of the first `count` pictures, and the pixels of every `step`-th. */
static uint64_t digest_of(const struct examples *examples, int count, int step)
{
    const size_t pixels = (size_t)examples->height * (size_t)examples->width;
    uint64_t digest = ODD;
    for (int i = 0; i < count; i++) {
        digest = chain(digest, (uint32_t)examples->labels[i]);
    }
    for (int i = 0; i < count; i += step) {
        digest = chain(digest, dictionary_hash(examples->images + (size_t)i * pixels, pixels));
    }
    return digest;
}

struct fingerprint fingerprint_of_pictures(const struct examples *examples, int64_t count)
{
    const int first = examples->count < FINGERPRINT_FIRST ? examples->count : FINGERPRINT_FIRST;
    const size_t bytes = (size_t)examples->count * (size_t)examples->height * (size_t)examples->width;
    return (struct fingerprint){
        .count = count,
        .height = examples->height,
        .width = examples->width,
        .first = digest_of(examples, first, 1),
        .whole = examples->count == count ? digest_of(examples, examples->count, 1 + (int)(bytes / SAMPLE_BYTES)) : 0};
}

void fingerprint_text(const struct fingerprint *fingerprint, char text[FINGERPRINT_TEXT])
{
    snprintf(text, FINGERPRINT_TEXT,
             "count=%" PRId64 " held_out=%" PRId64 " height=%d width=%d first=%016" PRIx64 " digest=%016" PRIx64,
             fingerprint->count, fingerprint->held_out, fingerprint->height, fingerprint->width, fingerprint->first,
             fingerprint->whole);
}

bool fingerprint_parse(struct fingerprint *fingerprint, const char *text)
{
    *fingerprint = (struct fingerprint){.count = 0};
    return sscanf(text, "count=%" SCNd64 " held_out=%" SCNd64 " height=%d width=%d first=%" SCNx64 " digest=%" SCNx64,
                  &fingerprint->count, &fingerprint->held_out, &fingerprint->height, &fingerprint->width,
                  &fingerprint->first, &fingerprint->whole) == 6;
}

bool fingerprint_same(const struct fingerprint *there, const struct fingerprint *here, struct error *error)
{
    const char *what = here->height > 0 ? "images" : "rows";
    const bool has_whole = there->whole != 0 && here->whole != 0;
    const uint64_t before = has_whole ? there->whole : there->first, now = has_whole ? here->whole : here->first;
    char count[COUNT_TEXT], other[COUNT_TEXT];
    count_text(count, there->count);
    count_text(other, here->count);
    if (there->height != here->height || there->width != here->width) {
        return error_set(error, "images of %dx%d there, %dx%d here", there->height, there->width, here->height,
                         here->width);
    }
    if (there->count != here->count) {
        return error_set(error, "%s %s there, %s here", count, what, other);
    }
    return before == now ||
           error_set(error, "as many %s, %s, of other content (digest %016" PRIx64 " there, %016" PRIx64 " here)", what,
                     count, before, now);
}
