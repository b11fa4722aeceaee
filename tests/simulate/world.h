/*
 * The simulator's world: virtual machines that run the program's own roles (server_run, remote_worker_run) as threads
 * of one thread, on a virtual clock, over a virtual network and disk.
 *
 * The program's code is linked unchanged. The system functions that it calls (threads, time, sockets, files, memory,
 * random numbers) are replaced at link time (--wrap) by the files of this folder. All randomness comes from one seed,
 * so a run is replayed exactly by its number.
 *
 *  world.c       threads, locks, waits, time; crashes
 *  agenda.c      what will happen, and when
 *  memory.c      memory, by machine
 *  network.c     sockets: streams with latency; cut, half-open and slow links
 *  disk.c        files: what is not synced is lost or torn when a machine loses power
 *  shortage.c    calls that fail: no memory, no more files, a disk that breaks
 *  process.c     what a process learns about itself; re-exec; children
 *  engine.c      what workers compute: gradients that show who made them
 *  oracle.c      what must hold of pushes and generations, and the list of all that must
 *  records.c     what each ps has done in its generation, for the files that follow
 *  inputs.c      with which preprocessing each worker makes inputs of its rows
 *  rounds.c      of which workers' gradients a step is made
 *  exchanges.c   what workers and ps send each other
 *  reference.c   one process that makes the same steps
 *  checkpoints.c what is saved, found and validated
 *  fleet.c       rollouts: who requests what, and what must hold
 *  candidates.c  what the operator proposes next, and its fate
 *  intruder.c    what an intruder tries
 *  programs.c    programs that are rolled out, and which one a process runs
 *  setup.c       which machines there are, and how they train
 *  service.c     their processes, which start again and again
 *  faults.c      what goes wrong
 *  cluster.c     a run, until training is over
 *  simulate.c    seeds, processes, options
 */
#ifndef TESTS_SIMULATE_WORLD_H
#define TESTS_SIMULATE_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct file;
struct disk;
struct thread;
struct memory_block;

enum { WORLD_MAX_MACHINES = 24, WORLD_MAX_FILES = 512 };

/* What a machine runs at the moment. */
struct machine {
    int number;
    char name[16]; /* "ps 0" */
    uint16_t port;
    bool runs;
    int life;             /* number of processes that have run here */
    int signal;           /* that told it to stop; 0: none */
    int status;           /* exit status of the last process that ended by itself */
    bool complained;      /* the present process logged an error */
    double clock_ahead_s; /* of its monotonic clock: time during which it was asleep */
    double clock_drift;   /* seconds that its clocks gain per second */
    double wall_ahead_s;
    double frozen_until_s;
    struct thread *threads;      /* of the present process */
    struct memory_block *blocks; /* of memory */
    size_t bytes, most_bytes;
    int thread_count;
    struct file *files[WORLD_MAX_FILES];
    struct disk *disk;
    int (*main)(struct machine *machine);
};

/* --- The world --- */

extern struct world {
    uint64_t seed, random;
    uint64_t names; /* of temporary files, so far; separate, because they decide nothing */
    double now_s;
    uint64_t events;  /* so far */
    uint64_t counted; /* of those, the ones before counted_s */
    double counted_s; /* from then on they are counted, to detect busy loops */
    struct machine machines[WORLD_MAX_MACHINES];
    int machine_count;
    struct machine *here; /* whose code is running */
    bool shows;           /* prints events as they happen */
    uint64_t lag;         /* a thread gets no processor for a while at one in this many locks; 0: never */
    bool failed;
    char why[512];
} world;

void world_begin(uint64_t seed);
void world_end(void);

/* Runs one event; false if nothing is left to happen before `until_s` (the clock then shows that time). */
bool world_step(double until_s);

/* The time of its monotonic clock; makes it run that much too fast from now on. */
double machine_clock_s(const struct machine *machine);
void machine_drift(struct machine *machine, double drift);

/* Starts the machine's program; kills it without warning (kill -9). */
void machine_start(struct machine *machine);
void machine_kill(struct machine *machine);

/* 0 <= result < below. */
uint64_t chance(uint64_t below);
double chance_real(void); /* [0, 1) */
static inline bool chance_of(double probability)
{
    return chance_real() < probability;
}

/* A line among the events. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Something is wrong: the run ends. The first reason counts. */
void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* --- Internal --- */

/* Schedules a call, outside all threads. */
void world_at(double when_s, void (*call)(void *context, uint64_t argument), void *context, uint64_t argument);

/*
 * Blocks the running thread until world_wake names what it waits for, or the time is over; false: over. INFINITY is
 * fine.
 */
bool thread_block(const void *what, double until_s);
/* Wakes the threads that wait for it on that machine. */
void thread_wake(struct machine *machine, const void *what);
/* The same for poll: of any of these files, or until then. */
struct pollfd;
bool thread_block_poll(const struct pollfd *polled, int count, double until_s);
void thread_wake_poll(struct machine *machine, int fd);
/* How long, by the world's clock, until that many seconds have passed on the running machine. */
double here_s(double seconds);
/* Ends the present process by itself. */
void machine_exit(int status) __attribute__((noreturn));

/* memory.c */
void memory_forget(struct machine *machine); /* frees all that its process had */
void *world_alloc(size_t size);              /* outside all machines; zeroed */

/* network.c */
enum { FILE_LISTENER, FILE_SOCKET, FILE_EVENT, FILE_SET, FILE_DATA, FILE_FOLDER };
struct file {
    int kind;
    int fd;
    struct machine *machine;
    union {
        struct {
            uint16_t port;
            struct file *pending[64];
            int count;
        } listener;
        struct {
            struct link *link;
            int side; /* of the link: 0 connected, 1 was connected to */
        } socket;
        uint64_t event;
        struct {
            struct watched *watched; /* [room]: of epoll */
            int count, room;
        } set;
        struct {
            struct inode *inode;
            size_t at;
            bool append;
        } data;
    };
};
struct file *file_new(int kind);
struct file *file_of(int fd);
void file_free(struct file *file);
bool network_watches(const struct machine *machine, int set, int fd); /* does this epoll set contain that file? */
void network_begin(void);
void network_end(void);
void network_close(struct file *file, bool silent); /* silent: the machine is gone, and peers are not told */
/* Faults of the link between two machines (or all of one: other NULL). */
void network_cut(struct machine *one, struct machine *other);       /* connections break */
void network_half_open(struct machine *one, struct machine *other); /* silence, then they break after 30 s */
enum partition { PART_BOTH, PART_FROM, PART_TO }; /* nothing passes, or nothing from the first one, or nothing to it */
void network_part(struct machine *one, struct machine *other, enum partition how, double until_s);
void network_silence(struct machine *machine); /* it has lost power: peers are not told */
extern double network_latency_s;               /* the usual maximum */

/* shortage.c */
enum {
    SHORT_OF_MEMORY,
    SHORT_READ,
    SHORT_WRITE,
    SHORT_FSYNC,
    SHORT_RENAME,
    SHORT_OPEN,
    SHORT_SOCKET,
    SHORT_CONNECT,
    SHORT_ACCEPT,
    SHORT_RECEIVE,
    SHORT_SEND,
    SHORT_THREAD,
    SHORT_KINDS,
};
extern struct shortage {
    int kind; /* -1: none */
    int machine;
    uint64_t first, count; /* which of its calls fail; counted from 1 */
    uint64_t calls, failed;
} shortage;
/* Every call of that kind asks: 0, or the errno to fail with. */
int falls_short(int kind);
const char *shortage_name(int kind); /* NULL: no such kind */
int shortage_find(const char *name); /* -1: no such name */

/* disk.c */
struct disk *disk_new(void);
void disk_free(struct disk *disk);
void disk_lose_power(struct disk *disk); /* what was not synced may be lost or torn */
void disk_fill(struct disk *disk, bool full);
bool disk_is_full(const struct disk *disk);
void disk_close(struct file *file);
/* From outside: a file that existed before the run; a file as it is now (false: it does not exist). */
void disk_put(struct disk *disk, const char *path, const void *bytes, size_t size); /* bytes NULL: a folder */
bool disk_get(const struct disk *disk, const char *path, char *text, size_t size);
const uint8_t *disk_bytes(const struct disk *disk, const char *path, size_t *size); /* NULL: it is not there */
/*
 * Rot: a bit of a file flips, or a part of it was never written, or another file's content lies there instead. It
 * happens to one of the files for which `may` returns true; false: there is none. What the disk lost silently
 * (disk_lie) counts as rotten, too. A file is sound if it is certain to survive and not rotten.
 */
bool disk_rot(struct disk *disk, bool (*may)(const char *path));
int disk_sound(const struct disk *disk, bool (*may)(const char *path), const char **last); /* last: by name */
void disk_heal(struct disk *disk); /* as from a backup: nothing is rotten any more */
bool disk_is_rotten(const struct disk *disk);
/* The next file that it reports as durable is not, nor is its name. */
void disk_lie(struct disk *disk);

#endif
