/* The integral over time of the number of computing devices, updated whenever that number changes. */
#include "cuda/client.h"

#include <pthread.h>
#include <stdint.h>

#include "cuda/handover.h"

static struct {
    pthread_mutex_t mutex;
    int taken, computing;
    int64_t ns, changed_ns;
} use = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Under the mutex. */
static void bring_up_to_date(void)
{
    const int64_t now_ns = handover_now_ns();
    use.ns += use.computing * (now_ns - use.changed_ns);
    use.changed_ns = now_ns;
}

static void change(int taken, int computing)
{
    pthread_mutex_lock(&use.mutex);
    bring_up_to_date();
    use.taken += taken;
    use.computing += computing;
    pthread_mutex_unlock(&use.mutex);
}

void gpu_use_take(void)
{
    change(1, 0);
}

void gpu_use_return(void)
{
    change(-1, 0);
}

void gpu_use_begin(void)
{
    change(0, 1);
}

void gpu_use_end(void)
{
    change(0, -1);
}

double gpu_use_seconds(int *gpus)
{
    pthread_mutex_lock(&use.mutex);
    bring_up_to_date();
    const int64_t ns = use.ns;
    *gpus = use.taken;
    pthread_mutex_unlock(&use.mutex);
    return (double)ns * 1e-9;
}
