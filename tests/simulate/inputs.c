/* Workers agree on preprocessing before they train: the calls by which they do are intercepted. */
#include "tests/simulate/inputs.h"

#include "tests/simulate/setup.h"
#include "tests/simulate/world.h"
#include "tests/simulate/wrap.h"
#include "worker/data/table/schema.h"
#include "worker/remote/exchange/requests.h"

static uint64_t goes_by[WORKERS_MAX_SIMULATED];

uint64_t inputs_of(int worker)
{
    return goes_by[worker];
}

uint64_t inputs_hash(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325; /* FNV-1a */
    for (; text && *text != '\0'; text++) {
        hash = (hash ^ (uint8_t)*text) * 0x100000001b3;
    }
    return text ? hash : 0;
}

static enum exchange_result note_agreed(enum exchange_result end, const struct dataset *dataset,
                                        const struct error *error)
{
    if (end == EXCHANGE_OK) {
        goes_by[world.here->number - setup.ps] = dataset->schema ? inputs_hash(dataset->schema->text) : 0;
    } else {
        say("no agreement on preprocessing: %s", error->text);
    }
    return end;
}

WRAP(enum exchange_result, preprocessing_publish, struct push_pull *exchange, const struct dataset *dataset,
     struct error *error)
{
    return note_agreed(__real_preprocessing_publish(exchange, dataset, error), dataset, error);
}

WRAP(enum exchange_result, preprocessing_agree, struct push_pull *exchange, const struct dataset *dataset,
     bool *differs, struct error *error)
{
    return note_agreed(__real_preprocessing_agree(exchange, dataset, differs, error), dataset, error);
}
