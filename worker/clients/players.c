/*
 * A player takes a client, takes its steps, and waits for its turn to deliver the result: clients take about equally
 * long, so that is a short wait. An aborted round still passes the turn on, so nobody waits for ever.
 */
#include "worker/clients/players.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/random/sampler.h"
#include "base/threads.h"
#include "ps/job/plan.h"

struct player {
    struct engine *engine;
    struct local_steps *local;
    int32_t *indexes; /* [batch_size] */
};

struct players {
    const struct config *config;
    const struct examples *examples;
    const struct partition *partition;
    size_t float_count;
    struct engine *inside;
    struct config alone; /* of an engine of one thread; owns nothing */
    struct pool *pool;   /* NULL: one player, on the engine inside */
    struct player *each; /* [count] */
    int count;

    /* A round. */
    const struct players_round *round;
    atomic_int next; /* next client to take */
    pthread_mutex_t lock;
    pthread_cond_t passed; /* the turn was passed */
    int turn;
    struct train_result *result;
    bool is_over; /* aborted */
    bool failed;
    struct error error; /* of the one that failed */
};

/* --- A round --- */

/* The steps of one client; a loss that is not finite ends them. */
static bool take_steps(struct players *players, struct player *player, int client, struct train_result *result,
                       struct error *error)
{
    const struct config_train *train = &players->config->train;
    const struct partition *partition = players->partition;
    const struct sampler sampler = {.seed = (uint64_t)train->seed,
                                    .task = (uint32_t)client,
                                    .examples = (uint32_t)partition_count(partition, client),
                                    .batch_size = (uint32_t)train->batch_size};
    const int64_t steps = round_batches(train, sampler_epoch_batches(&sampler));
    const int32_t *own = partition->order ? partition->order + partition->first[client] : NULL;
    for (int64_t i = 0; i < steps && result->finite; i++) {
        const int64_t number = players->round->global_step * steps + i;
        struct batch batch = {
            .examples = players->examples, .indexes = player->indexes, .task = sampler.task, .step = number};
        batch.count = sampler_draw(&sampler, number, player->indexes);
        for (int k = 0; own && k < batch.count; k++) {
            player->indexes[k] = own[player->indexes[k]];
        }
        if (!local_steps_take(player->local, &batch, result, error)) {
            return false;
        }
    }
    return true;
}

/* In its turn: delivers a client's result. done: all its steps were taken, as far as losses were finite. */
static bool hand_over(struct players *players, struct player *player, int at, bool done,
                      const struct train_result *result, struct error *error)
{
    if (!done) {
        return false;
    }
    train_result_add(players->result, result);
    return result->finite ? players->round->ends(players->round->context, at, player->local, error)
                          : local_steps_end(player->local, NULL, error);
}

/* Waits for its turn. False: the round was aborted meanwhile. */
static bool await_turn(struct players *players, int at)
{
    pthread_mutex_lock(&players->lock);
    while (players->turn != at) {
        pthread_cond_wait(&players->passed, &players->lock);
    }
    const bool goes_on = !players->is_over;
    pthread_mutex_unlock(&players->lock);
    return goes_on;
}

static void pass_turn(struct players *players, bool is_over)
{
    pthread_mutex_lock(&players->lock);
    players->is_over |= is_over;
    players->turn++;
    pthread_cond_broadcast(&players->passed);
    pthread_mutex_unlock(&players->lock);
}

static bool is_over(struct players *players)
{
    pthread_mutex_lock(&players->lock);
    const bool over = players->is_over;
    pthread_mutex_unlock(&players->lock);
    return over;
}

static void play_client(struct players *players, struct player *player, int at)
{
    const struct players_round *round = players->round;
    struct train_result result = {.finite = true};
    struct error error;
    bool done =
        is_over(players) || (local_steps_begin(player->local, &players->config->train, round->global_step, &error) &&
                             take_steps(players, player, round->clients[at], &result, &error));
    if (!await_turn(players, at)) {
        pass_turn(players, true);
        return;
    }
    done = hand_over(players, player, at, done, &result, &error);
    if (!done) {
        players->failed = true;
        players->error = error;
    }
    pass_turn(players, !done || !result.finite);
}

/* A player with its own engine first needs the parameters. */
static void play(void *context, int index)
{
    struct players *players = context;
    struct player *player = &players->each[index];
    const struct players_round *round = players->round;
    struct engine *engine = player->engine;
    int at;
    if (engine != players->inside) {
        memcpy(engine->table->parameters(engine), round->parameters, players->float_count * sizeof(float));
    }
    while ((at = atomic_fetch_add(&players->next, 1)) < round->count) {
        play_client(players, player, at);
    }
}

bool players_play(struct players *players, const struct players_round *round, struct train_result *result,
                  struct error *error)
{
    players->round = round;
    players->result = result;
    players->turn = 0;
    players->failed = players->is_over = false;
    atomic_store(&players->next, 0);
    if (players->pool) {
        pool_run(players->pool, play, players);
    } else {
        play(players, 0);
    }
    if (players->failed) {
        *error = players->error;
    }
    return !players->failed;
}

/* --- Create and destroy --- */

/* As many as there are threads, if the engine inside has threads and there are enough clients for all. */
static int players_wanted(const struct engine *inside, const struct config_train *train, int in_round)
{
    const int threads = train->num_threads > 0 ? train->num_threads : threads_available();
    const int most = threads < POOL_MAX_THREADS ? threads : POOL_MAX_THREADS;
    return strcmp(inside->table->name, "cpu") == 0 && in_round >= most ? most : 1;
}

static bool create_player(struct players *players, struct player *player, const struct engine_options *options,
                          struct error *error)
{
    player->indexes = calloc((size_t)players->config->train.batch_size, sizeof *player->indexes);
    if (!player->indexes) {
        return error_set(error, "out of memory for the batches of clients");
    }
    player->engine = players->inside;
    return (!players->pool || cpu_engine_create(&player->engine, options, error)) &&
           local_steps_create(&player->local, options->model, player->engine, &players->config->train, error);
}

static bool create_all(struct players *players, const struct engine_options *options, struct error *error)
{
    struct engine_options own = *options;
    players->each = calloc((size_t)players->count, sizeof *players->each);
    if (!players->each) {
        return error_set(error, "out of memory for %d players of clients", players->count);
    }
    if (players->count > 1 && !pool_create(&players->pool, players->count, error)) {
        return false;
    }
    players->alone = *options->config;
    players->alone.train.num_threads = 1;
    players->alone.train.optimizer = OPTIMIZER_SGD; /* local_steps has the state of the optimizer */
    own.config = &players->alone;
    for (int i = 0; i < players->count; i++) {
        if (!create_player(players, &players->each[i], &own, error)) {
            return false;
        }
    }
    if (players->pool && options->gives_way) {
        pool_give_way(players->pool);
    }
    return true;
}

bool players_create(struct players **out, struct engine *inside, const struct engine_options *options,
                    const struct examples *examples, const struct partition *partition, int in_round,
                    struct error *error)
{
    struct players *players = calloc(1, sizeof *players);
    if (!players) {
        return error_set(error, "out of memory for the players of clients");
    }
    players->config = options->config;
    players->examples = examples;
    players->partition = partition;
    players->float_count = options->model->float_count;
    players->inside = inside;
    players->count = players_wanted(inside, &options->config->train, in_round);
    pthread_mutex_init(&players->lock, NULL);
    pthread_cond_init(&players->passed, NULL);
    if (!create_all(players, options, error)) {
        players_destroy(players);
        return false;
    }
    *out = players;
    return true;
}

void players_destroy(struct players *players)
{
    if (!players) {
        return;
    }
    for (int i = 0; players->each && i < players->count; i++) {
        struct player *player = &players->each[i];
        local_steps_destroy(player->local);
        free(player->indexes);
        if (player->engine && player->engine != players->inside) {
            player->engine->table->destroy(player->engine);
        }
    }
    pool_destroy(players->pool);
    pthread_cond_destroy(&players->passed);
    pthread_mutex_destroy(&players->lock);
    free(players->each);
    free(players);
}
