/* A simulated GPU driver: it answers as libnvidia-ml.so.1 does, for GPUs that live in one memory-mapped file.
 *
 * All processes that use the same file see the same GPUs. Nothing here is measured on a GPU: powers and speeds follow the
 * model in `settle`, with parameters that the file's maker wrote into it. It knows nothing of jobs, leases or Ray.
 *
 * Each GPU's state is one record. Whoever changes it copies the live record into a free place, changes the copy and
 * publishes it with one compare-and-swap; who came second starts over. There is no lock, so a process that is killed or
 * stopped at any instruction can neither block the others nor leave half a change behind.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

/* ------------------------------------------------------------------ the file */

#define MAGIC 0x5550474d49535347ull /* "GSSIMGPU" */
#define VERSION 1
#define MAX_GPUS 16
#define MAX_PROCESSES 32
#define PLACES 32
/* Work that is on the GPU's queue goes on this long without its process: a stopped process draws for that long. */
#define QUEUE_NS 500000000ull
#define STEP_NS 20000000ull
#define AVERAGE_TAU_S 0.5
#define TEMPERATURE_TAU_S 20.0

/* Every member is 8 bytes or a multiple, so that the mirror in Python needs no thought about padding. */
typedef struct {
    uint64_t pid, start_ticks, serial;
    double intensity;
    uint64_t memory_bytes;
    double done_s, target_s;
    uint64_t active_until_ns, gpu_instance, compute_instance;
} Process;

typedef struct {
    char name[64], uuid[64];
    uint64_t architecture, memory_bytes;
    /* limits; a pending one shows from pending_at_ns on; limit_calls is how often one was asked for, granted or not */
    uint64_t min_mw, max_mw, default_mw, limit_mw, pending_mw, pending_at_ns, lag_ns, limit_calls;
    /* from outside: a lower limit that is enforced (0: none), and somebody who sets the limit again and again */
    uint64_t outside_mw, rival_mw, rival_period_ns, rival_next_ns;
    /* the power model */
    double idle_w, execution_idle_w, static_w, draw_w, cubic_share, fixed_share, module_extra_w;
    uint64_t min_mhz, max_mhz, memory_mhz, lock_min_mhz, lock_max_mhz, memory_lock_min_mhz, memory_lock_max_mhz;
    double ambient_c, c_per_w, temperature_c;
    /* what has accrued */
    double energy_mj, average_w, capped_s, work_done_s;
    uint64_t updated_ns, boots;
    uint64_t persistence, mig, mig_pending, power_is_average;
    /* faults */
    uint64_t no_permission, lost, fail_every, fail_code, slow_ms, missing;
    uint64_t energy_mode;
    double energy_factor, energy_at_fault_mj, noise;
    uint64_t noise_seed, process_count;
    Process processes[MAX_PROCESSES];
} Gpu;

typedef struct {
    uint64_t head;           /* number of changes so far * PLACES + the live place */
    uint64_t calls;          /* for "one call in N fails" */
    uint64_t owner[PLACES];  /* who writes there: start ticks << 32 | pid; 0: nobody */
    Gpu place[PLACES];
} Cell;

typedef struct {
    uint64_t magic, version, count, gpu_size, driver_absent, next_serial;
    char driver_version[80], boot_id[40];
    Cell cell[];
} File;

typedef struct {
    char path[4096];
    dev_t dev;
    ino_t ino;
    File *file;
} Mapping;

enum { ENERGY_OK, ENERGY_STUCK, ENERGY_BACKWARDS, ENERGY_ABSENT, ENERGY_JUMPS };
enum { MISSING_POWER = 1, MISSING_LIMITS = 2, MISSING_ENERGY = 4, MISSING_FIELDS = 8, MISSING_UTILIZATION = 16,
       MISSING_TEMPERATURE = 32, MISSING_PROCESSES = 64, MISSING_CLOCKS = 128, MISSING_MIG = 256 };

/* NVML's return codes */
enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, OPERATING_SYSTEM = 17, INSUFFICIENT_RESOURCES = 23,
       VERSION_MISMATCH = 25, UNKNOWN = 999 };

static uint64_t boottime_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void sleep_ns(uint64_t ns) {
    struct timespec t = {(time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull)};
    nanosleep(&t, NULL); /* a signal ends it early, and the caller looks at the clock */
}

/* ------------------------------------------------------------------ processes of the machine */

/* State letter and start time of a process; 0 when there is none. */
static char process_state(uint64_t pid, uint64_t *start_ticks) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return 0;
    text[n] = 0;
    char *at = strrchr(text, ')'); /* the name in parentheses may hold anything */
    if (!at || !at[1]) return 0;
    char state = at[2];
    at += 2;
    for (int field = 3; field < 22 && at; field++) at = strchr(at + 1, ' ');
    if (!at) return 0;
    *start_ticks = strtoull(at + 1, NULL, 10);
    return state;
}

static int gone(uint64_t pid, uint64_t start_ticks_low32) {
    uint64_t start = 0;
    char state = process_state(pid, &start);
    return !state || state == 'Z' || state == 'X' || (start & 0xffffffffull) != start_ticks_low32;
}

static uint64_t own_start_ticks(void) {
    static _Atomic uint64_t known_pid, known_start;
    uint64_t pid = (uint64_t)getpid();
    if (known_pid != pid) { /* also the child after a fork */
        uint64_t start = 0;
        process_state(pid, &start);
        known_start = start;
        known_pid = pid;
    }
    return known_start;
}

/* ------------------------------------------------------------------ one change at a time, without a lock */

typedef struct {
    Cell *cell;
    uint64_t head;
    int place;
    Gpu *gpu;
} Change;

static void begin_change(Cell *cell, Change *change) {
    uint64_t me = (own_start_ticks() << 32) | (uint64_t)getpid();
    for (unsigned round = 0;; round++) {
        uint64_t head = __atomic_load_n(&cell->head, __ATOMIC_SEQ_CST);
        for (int i = 1; i < PLACES; i++) {
            int place = (int)((head + (uint64_t)i) % PLACES);
            uint64_t owner = __atomic_load_n(&cell->owner[place], __ATOMIC_SEQ_CST);
            /* a dead owner's place is looked for only when no other is free: it costs a look into /proc */
            if (owner && (round < 2 || !gone(owner & 0xffffffffull, owner >> 32))) continue;
            if (!__atomic_compare_exchange_n(&cell->owner[place], &owner, me, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) continue;
            head = __atomic_load_n(&cell->head, __ATOMIC_SEQ_CST);
            if ((int)(head % PLACES) != place) {
                memcpy(&cell->place[place], &cell->place[head % PLACES], sizeof(Gpu));
                __atomic_thread_fence(__ATOMIC_SEQ_CST);
                /* the copy is whole only if the live place was still the live one after it */
                if (__atomic_load_n(&cell->head, __ATOMIC_SEQ_CST) == head) {
                    *change = (Change){cell, head, place, &cell->place[place]};
                    return;
                }
            }
            __atomic_store_n(&cell->owner[place], 0, __ATOMIC_SEQ_CST);
            break;
        }
        if (round > 2) sleep_ns(100000);
    }
}

static int publish(Change *change) {
    uint64_t expected = change->head, next = (change->head / PLACES + 1) * PLACES + (uint64_t)change->place;
    int ok = __atomic_compare_exchange_n(&change->cell->head, &expected, next, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    __atomic_store_n(&change->cell->owner[change->place], 0, __ATOMIC_SEQ_CST);
    return ok;
}

/* Runs the block on an up-to-date `gpu` until it got published; the block may run more than once. */
#define CHANGE(cell_, gpu_, ...)                     \
    do {                                             \
        Change change_;                              \
        do {                                         \
            begin_change((cell_), &change_);         \
            Gpu *gpu_ = change_.gpu;                 \
            settle(gpu_, boottime_ns());             \
            __VA_ARGS__                              \
        } while (!publish(&change_));                \
    } while (0)

/* ------------------------------------------------------------------ the model */

typedef struct {
    double power_w, clock, share, speed, load; /* clock and load 0..1; speed 0..1 of a process that is alone */
    int capped, working, resident;
} Now;

static uint64_t enforced_mw(const Gpu *gpu) {
    return gpu->outside_mw && gpu->outside_mw < gpu->limit_mw ? gpu->outside_mw : gpu->limit_mw;
}

static int works_at(const Process *process, uint64_t at_ns) {
    return process->done_s < process->target_s && at_ns < process->active_until_ns;
}

static double power_at(const Gpu *gpu, double load, double clock) {
    double span = (gpu->draw_w - gpu->static_w) * load;
    return gpu->static_w + span * (gpu->cubic_share * clock * clock * clock + (1 - gpu->cubic_share) * clock);
}

static Now state_at(const Gpu *gpu, uint64_t at_ns) {
    Now now = {0};
    double wanted = 0, floor_clock = (double)gpu->min_mhz / (double)gpu->max_mhz;
    for (uint64_t i = 0; i < gpu->process_count; i++) {
        now.resident = 1;
        if (works_at(&gpu->processes[i], at_ns)) {
            now.working = 1;
            wanted += gpu->processes[i].intensity;
        }
    }
    double ceiling = gpu->lock_max_mhz ? (double)gpu->lock_max_mhz / (double)gpu->max_mhz : 1.0;
    ceiling = fmin(1.0, fmax(floor_clock, ceiling));
    now.load = fmin(1.0, wanted);
    now.share = wanted > 1.0 ? 1.0 / wanted : 1.0;
    if (!now.working) {
        now.clock = now.resident ? ceiling : floor_clock;
        /* a program that waits keeps the clocks up; lower clocks take that part of its draw away */
        now.power_w = gpu->idle_w + (now.resident ? (gpu->execution_idle_w - gpu->idle_w) * ceiling : 0);
        return now;
    }
    double limit_w = (double)enforced_mw(gpu) / 1000.0;
    now.clock = ceiling;
    if (power_at(gpu, now.load, ceiling) > limit_w) {
        now.capped = 1;
        double low = floor_clock, high = ceiling;
        for (int i = 0; i < 48; i++) {
            double middle = (low + high) / 2;
            if (power_at(gpu, now.load, middle) <= limit_w) low = middle;
            else high = middle;
        }
        now.clock = low; /* at the lowest clock the draw may still exceed the limit, as on a real one */
    }
    now.power_w = power_at(gpu, now.load, now.clock);
    now.speed = now.share / (gpu->fixed_share + (1 - gpu->fixed_share) / now.clock);
    return now;
}

static uint64_t earlier(uint64_t a, uint64_t candidate, uint64_t after) {
    return candidate > after && candidate < a ? candidate : a;
}

static void boot(Gpu *gpu, uint64_t now_ns) {
    gpu->limit_mw = gpu->default_mw;
    gpu->pending_at_ns = gpu->lock_min_mhz = gpu->lock_max_mhz = gpu->memory_lock_min_mhz = gpu->memory_lock_max_mhz = 0;
    gpu->energy_mj = gpu->energy_at_fault_mj = gpu->capped_s = gpu->work_done_s = 0;
    gpu->average_w = gpu->idle_w;
    gpu->temperature_c = gpu->ambient_c + gpu->c_per_w * gpu->idle_w;
    gpu->process_count = gpu->persistence = 0;
    gpu->mig = gpu->mig_pending;
    gpu->updated_ns = now_ns;
    if (gpu->rival_period_ns) gpu->rival_next_ns = now_ns + gpu->rival_period_ns;
    gpu->boots++;
}

/* Bring the record up to `now_ns`: forget dead processes, then add up energy, work and warmth since the last time. */
static void settle(Gpu *gpu, uint64_t now_ns) {
    uint64_t kept = 0, at = gpu->updated_ns;
    if (gpu->process_count > MAX_PROCESSES) gpu->process_count = MAX_PROCESSES;
    for (uint64_t i = 0; i < gpu->process_count; i++) {
        Process *process = &gpu->processes[i];
        uint64_t start = 0;
        char state = process_state(process->pid, &start);
        /* it drew until somebody last looked; a working process looks every 20 ms itself */
        if (!state || state == 'Z' || state == 'X' || start != process->start_ticks) continue;
        if ((state == 'T' || state == 't') && process->active_until_ns > at) process->active_until_ns = at;
        gpu->processes[kept++] = *process;
    }
    gpu->process_count = kept;
    if (now_ns <= at) return;
    if (gpu->lost) {
        gpu->updated_ns = now_ns;
        return;
    }
    while (at < now_ns) {
        if (gpu->pending_at_ns && gpu->pending_at_ns <= at) {
            gpu->limit_mw = gpu->pending_mw;
            gpu->pending_at_ns = 0;
        }
        if (gpu->rival_period_ns && gpu->rival_next_ns <= at) {
            gpu->limit_mw = gpu->rival_mw;
            gpu->rival_next_ns += ((at - gpu->rival_next_ns) / gpu->rival_period_ns + 1) * gpu->rival_period_ns;
        }
        uint64_t until = earlier(now_ns, gpu->pending_at_ns, at);
        if (gpu->rival_period_ns && gpu->limit_mw != gpu->rival_mw) until = earlier(until, gpu->rival_next_ns, at);
        Now now = state_at(gpu, at);
        for (uint64_t i = 0; i < kept; i++) {
            Process *process = &gpu->processes[i];
            if (!works_at(process, at)) continue;
            until = earlier(until, process->active_until_ns, at);
            double left_ns = (process->target_s - process->done_s) / now.speed * 1e9;
            if (left_ns < 1e18) until = earlier(until, at + (uint64_t)left_ns + 1, at);
        }
        double seconds = (double)(until - at) / 1e9;
        for (uint64_t i = 0; i < kept; i++) {
            Process *process = &gpu->processes[i];
            if (!works_at(process, at)) continue;
            double before = process->done_s;
            process->done_s = fmin(process->target_s, before + now.speed * seconds);
            if (process->target_s - process->done_s < 1e-9) process->done_s = process->target_s;
            gpu->work_done_s += process->done_s - before;
        }
        gpu->energy_mj += (now.power_w + gpu->module_extra_w) * seconds * 1000;
        if (now.capped) gpu->capped_s += seconds;
        gpu->average_w = now.power_w + (gpu->average_w - now.power_w) * exp(-seconds / AVERAGE_TAU_S);
        double warm = gpu->ambient_c + gpu->c_per_w * now.power_w;
        gpu->temperature_c = warm + (gpu->temperature_c - warm) * exp(-seconds / TEMPERATURE_TAU_S);
        at = until;
    }
    if (gpu->pending_at_ns && gpu->pending_at_ns <= at) {
        gpu->limit_mw = gpu->pending_mw;
        gpu->pending_at_ns = 0;
    }
    if (gpu->rival_period_ns && gpu->rival_next_ns <= at) gpu->limit_mw = gpu->rival_mw;
    gpu->updated_ns = now_ns;
}

/* A number in [-1, 1] that depends on the seed and the tenth of a second alone. */
static double noise_at(uint64_t seed, uint64_t at_ns) {
    uint64_t x = seed * 0x9e3779b97f4a7c15ull + at_ns / 100000000ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    x ^= x >> 31;
    return (double)(x >> 11) / (double)(1ull << 52) - 1.0;
}

static double shown_power_w(const Gpu *gpu, int average) {
    double power_w = average ? gpu->average_w : state_at(gpu, gpu->updated_ns).power_w;
    return fmax(0.0, power_w * (1 + gpu->noise * noise_at(gpu->noise_seed, gpu->updated_ns)));
}

static int shown_energy_mj(const Gpu *gpu, uint64_t *mj) {
    double energy = gpu->energy_mj, since = energy - gpu->energy_at_fault_mj;
    switch (gpu->energy_mode) {
    case ENERGY_ABSENT: return NOT_SUPPORTED;
    case ENERGY_STUCK: energy = gpu->energy_at_fault_mj; break;
    case ENERGY_BACKWARDS: energy = fmax(0.0, gpu->energy_at_fault_mj - since); break;
    case ENERGY_JUMPS: energy += 1e9 * floor(since / 1e5); break; /* 1 MJ too much after each 100 J */
    default: energy *= gpu->energy_factor;
    }
    *mj = (uint64_t)energy;
    return SUCCESS;
}

/* ------------------------------------------------------------------ opening */

static Mapping *mappings[256];
static Mapping *current;
static int inits;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static size_t file_size(uint64_t count) { return sizeof(File) + (size_t)count * sizeof(Cell); }

static void read_boot_id(char *text, size_t size) {
    memset(text, 0, size);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t n = read(fd, text, size - 1);
    close(fd);
    if (n > 0) text[strcspn(text, "\n")] = 0;
}

/* Maps a state file, once per process and file. NULL, with errno set, when it is none. */
static Mapping *map_file(const char *path) {
    struct stat info;
    int free_at = -1;
    if (!path || strlen(path) >= sizeof(((Mapping *)0)->path)) {
        errno = EINVAL;
        return NULL;
    }
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return NULL;
    if (fstat(fd, &info)) {
        close(fd);
        return NULL;
    }
    for (int i = 0; i < 256; i++) {
        if (!mappings[i]) {
            if (free_at < 0) free_at = i;
        } else if (mappings[i]->dev == info.st_dev && mappings[i]->ino == info.st_ino && !strcmp(mappings[i]->path, path)) {
            close(fd);
            return mappings[i];
        }
    }
    File *file = MAP_FAILED;
    if (info.st_size >= (off_t)sizeof(File))
        file = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (file == MAP_FAILED) {
        errno = EINVAL;
        return NULL;
    }
    if (file->magic != MAGIC || file->version != VERSION || file->count > MAX_GPUS || file->gpu_size != sizeof(Gpu) ||
        (size_t)info.st_size < file_size(file->count)) {
        munmap(file, (size_t)info.st_size);
        errno = EPROTO;
        return NULL;
    }
    Mapping *mapping = calloc(1, sizeof *mapping);
    if (!mapping) return NULL;
    snprintf(mapping->path, sizeof mapping->path, "%s", path);
    mapping->dev = info.st_dev;
    mapping->ino = info.st_ino;
    mapping->file = file;
    /* mappings are never taken down: another thread may be in the middle of a call */
    if (free_at >= 0) mappings[free_at] = mapping;
    char boot_id[40];
    read_boot_id(boot_id, sizeof boot_id);
    if (strncmp(boot_id, file->boot_id, sizeof boot_id)) { /* the machine was booted since: so were its GPUs */
        memcpy(file->boot_id, boot_id, sizeof boot_id);
        for (uint64_t i = 0; i < file->count; i++) {
            Change change;
            do {
                begin_change(&file->cell[i], &change);
                boot(change.gpu, boottime_ns());
            } while (!publish(&change));
        }
    }
    return mapping;
}

static Mapping *open_locked(const char *path) {
    pthread_mutex_lock(&opening);
    Mapping *mapping = map_file(path);
    pthread_mutex_unlock(&opening);
    return mapping;
}

/* ------------------------------------------------------------------ control: used by dispatcher.simgpu only */

API uint64_t gridshift_simgpu_gpu_size(void) { return sizeof(Gpu); }

/* Writes a new state file of `count` GPUs; their records come from the caller. 0, or an errno. */
API int gridshift_simgpu_create(const char *path, const Gpu *gpus, uint64_t count, const char *driver_version) {
    if (count < 1 || count > MAX_GPUS) return EINVAL;
    char temporary[4096];
    if (snprintf(temporary, sizeof temporary, "%s.%d", path, (int)getpid()) >= (int)sizeof temporary) return ENAMETOOLONG;
    int fd = open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return errno;
    File *file = MAP_FAILED;
    if (!ftruncate(fd, (off_t)file_size(count)))
        file = mmap(NULL, file_size(count), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int problem = file == MAP_FAILED ? errno : 0;
    close(fd);
    if (!problem) {
        uint64_t now = boottime_ns();
        for (uint64_t i = 0; i < count; i++) {
            Gpu *gpu = &file->cell[i].place[0];
            *gpu = gpus[i];
            boot(gpu, now);
            gpu->boots = 0;
        }
        snprintf(file->driver_version, sizeof file->driver_version, "%s", driver_version);
        read_boot_id(file->boot_id, sizeof file->boot_id);
        file->count = count;
        file->gpu_size = sizeof(Gpu);
        file->next_serial = 1;
        file->version = VERSION;
        file->magic = MAGIC;
        munmap(file, file_size(count));
        if (rename(temporary, path)) problem = errno;
    }
    if (problem) unlink(temporary);
    return problem;
}

/* A handle to the state file at `path`, or NULL with errno set. */
API void *gridshift_simgpu_open(const char *path) { return open_locked(path); }

API uint64_t gridshift_simgpu_count(void *handle) { return ((Mapping *)handle)->file->count; }

/* Copies one GPU's record, brought up to now. */
API int gridshift_simgpu_read(void *handle, uint64_t index, Gpu *out) {
    File *file = ((Mapping *)handle)->file;
    if (index >= file->count) return EINVAL;
    CHANGE(&file->cell[index], gpu, { *out = *gpu; });
    return 0;
}

/* Overwrites `size` bytes of one GPU's record at `offset`, brought up to now before. */
API int gridshift_simgpu_write(void *handle, uint64_t index, uint64_t offset, const void *bytes, uint64_t size) {
    File *file = ((Mapping *)handle)->file;
    if (index >= file->count || offset + size > sizeof(Gpu)) return EINVAL;
    CHANGE(&file->cell[index], gpu, {
        memcpy((char *)gpu + offset, bytes, size);
        gpu->energy_at_fault_mj = offset == offsetof(Gpu, energy_mode) ? gpu->energy_mj : gpu->energy_at_fault_mj;
        if (offset == offsetof(Gpu, rival_period_ns)) gpu->rival_next_ns = gpu->updated_ns + gpu->rival_period_ns;
    });
    return 0;
}

/* What the model says at this moment: power in W (no noise), clock 0..1, speed 0..1, load 0..1. */
API int gridshift_simgpu_model(void *handle, uint64_t index, double out[4]) {
    File *file = ((Mapping *)handle)->file;
    if (index >= file->count) return EINVAL;
    CHANGE(&file->cell[index], gpu, {
        Now now = state_at(gpu, gpu->updated_ns);
        out[0] = now.power_w;
        out[1] = now.clock;
        out[2] = now.speed;
        out[3] = now.load;
    });
    return 0;
}

/* The machine boots: limits, clocks and counters as after power-on, no process is left. */
API void gridshift_simgpu_reboot(void *handle) {
    File *file = ((Mapping *)handle)->file;
    for (uint64_t i = 0; i < file->count; i++) CHANGE(&file->cell[i], gpu, { boot(gpu, boottime_ns()); });
}

API void gridshift_simgpu_driver_absent(void *handle, int absent) {
    __atomic_store_n(&((Mapping *)handle)->file->driver_absent, (uint64_t)(absent != 0), __ATOMIC_SEQ_CST);
}

/* For tests: take a place of the record as a change in the making does, and come back without ending it. */
API int gridshift_simgpu_begin_and_leave(void *handle, uint64_t index) {
    File *file = ((Mapping *)handle)->file;
    if (index >= file->count) return EINVAL;
    Change change;
    begin_change(&file->cell[index], &change);
    return change.place;
}

/* ------------------------------------------------------------------ work: used by workload.py */

/* This process uses GPU `index` with `intensity` (0..1, how much of the GPU's draw it causes) and `memory_bytes`.
 * Returns a serial number > 0, or minus an NVML code. */
API int64_t gridshift_simgpu_attach(void *handle, uint64_t index, double intensity, uint64_t memory_bytes) {
    File *file = ((Mapping *)handle)->file;
    if (index >= file->count || !(intensity >= 0 && intensity <= 1)) return -INVALID_ARGUMENT;
    uint64_t serial = __atomic_fetch_add(&file->next_serial, 1, __ATOMIC_SEQ_CST);
    int64_t result = 0;
    CHANGE(&file->cell[index], gpu, {
        if (gpu->lost) result = -GPU_IS_LOST;
        else if (gpu->process_count >= MAX_PROCESSES) result = -INSUFFICIENT_RESOURCES;
        else {
            gpu->processes[gpu->process_count++] = (Process){
                .pid = (uint64_t)getpid(), .start_ticks = own_start_ticks(), .serial = serial, .intensity = intensity,
                .memory_bytes = memory_bytes, .gpu_instance = UINT32_MAX, .compute_instance = UINT32_MAX};
            result = (int64_t)serial;
        }
    });
    return result;
}

static Process *find_process(Gpu *gpu, uint64_t serial) {
    for (uint64_t i = 0; i < gpu->process_count; i++)
        if (gpu->processes[i].serial == serial) return &gpu->processes[i];
    return NULL;
}

API int gridshift_simgpu_detach(void *handle, uint64_t index, uint64_t serial) {
    File *file = ((Mapping *)handle)->file;
    if (index >= file->count) return INVALID_ARGUMENT;
    CHANGE(&file->cell[index], gpu, {
        Process *process = find_process(gpu, serial);
        if (process) *process = gpu->processes[--gpu->process_count];
    });
    return SUCCESS;
}

/* Puts `add_s[i]` seconds of full-speed work on each GPU's queue (NULL: nothing), then waits for at most `wall_s` seconds or
 * until all queues are done; `left_s[i]` says what is not. Several GPUs work at the same time. Returns an NVML code. */
API int gridshift_simgpu_run(void *handle, const uint64_t *indexes, const uint64_t *serials, uint64_t count,
                             const double *add_s, double *left_s, double wall_s) {
    File *file = ((Mapping *)handle)->file;
    uint64_t end_ns = boottime_ns() + (uint64_t)(fmax(0.0, wall_s) * 1e9);
    for (int first = 1;; first = 0) {
        uint64_t wait_ns = STEP_NS;
        int busy = 0;
        for (uint64_t i = 0; i < count; i++) {
            double left = 0, speed = 0;
            int result = SUCCESS;
            if (indexes[i] >= file->count) return INVALID_ARGUMENT;
            CHANGE(&file->cell[indexes[i]], gpu, {
                Process *process = find_process(gpu, serials[i]);
                result = gpu->lost ? GPU_IS_LOST : process ? SUCCESS : NOT_FOUND;
                if (!result) {
                    if (first && add_s) process->target_s += fmax(0.0, add_s[i]);
                    process->active_until_ns = gpu->updated_ns + QUEUE_NS;
                    left = process->target_s - process->done_s;
                    speed = state_at(gpu, gpu->updated_ns).speed;
                }
            });
            if (result) return result;
            left_s[i] = left;
            if (left > 0) {
                busy = 1;
                if (speed > 0) wait_ns = (uint64_t)fmin((double)wait_ns, left / speed * 1e9 + 1000);
            }
        }
        uint64_t now_ns = boottime_ns();
        if (!busy || now_ns >= end_ns) return SUCCESS;
        sleep_ns(wait_ns < end_ns - now_ns ? wait_ns : end_ns - now_ns);
    }
}

/* ------------------------------------------------------------------ NVML */

typedef struct {
    uint64_t index;
} Device; /* nvmlDevice_t points at one of these */

static Device devices[MAX_GPUS] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}};

static File *driver(int *problem) {
    Mapping *mapping = __atomic_load_n(&current, __ATOMIC_SEQ_CST);
    if (!mapping || !__atomic_load_n(&inits, __ATOMIC_SEQ_CST)) *problem = UNINITIALIZED;
    else *problem = __atomic_load_n(&mapping->file->driver_absent, __ATOMIC_SEQ_CST) ? DRIVER_NOT_LOADED : SUCCESS;
    return *problem ? NULL : mapping->file;
}

/* A look at the GPU, up to now, with the faults that any call meets. `missing`: what this call is part of. */
static int look(const Device *device, uint64_t missing, Gpu *out, Cell **cell) {
    int problem;
    File *file = driver(&problem);
    if (problem) return problem;
    if (device < devices || device >= devices + file->count) return INVALID_ARGUMENT;
    *cell = &file->cell[device->index];
    CHANGE(*cell, gpu, { *out = *gpu; });
    uint64_t calls = __atomic_add_fetch(&(*cell)->calls, 1, __ATOMIC_SEQ_CST);
    if (out->slow_ms) {
        uint64_t end_ns = boottime_ns() + out->slow_ms * 1000000ull;
        for (uint64_t now_ns; (now_ns = boottime_ns()) < end_ns;) sleep_ns(end_ns - now_ns);
        CHANGE(*cell, gpu, { *out = *gpu; });
    }
    if (out->lost) return GPU_IS_LOST;
    if (out->fail_every && calls % out->fail_every == 0) return (int)out->fail_code;
    return out->missing & missing ? NOT_SUPPORTED : SUCCESS;
}

#define LOOK(missing_)                                    \
    Gpu gpu;                                              \
    Cell *cell;                                           \
    int problem = look(device, (missing_), &gpu, &cell);  \
    (void)cell;                                           \
    if (problem) return problem

API int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&opening);
    Mapping *mapping = map_file(getenv("GRIDSHIFT_SIMGPU"));
    int ok = mapping && !__atomic_load_n(&mapping->file->driver_absent, __ATOMIC_SEQ_CST);
    if (ok) {
        __atomic_store_n(&current, mapping, __ATOMIC_SEQ_CST);
        __atomic_add_fetch(&inits, 1, __ATOMIC_SEQ_CST);
    }
    pthread_mutex_unlock(&opening);
    return ok ? SUCCESS : DRIVER_NOT_LOADED;
}

API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API int nvmlInit(void) { return nvmlInitWithFlags(0); }

API int nvmlShutdown(void) {
    pthread_mutex_lock(&opening);
    int problem = inits ? SUCCESS : UNINITIALIZED;
    if (inits) __atomic_sub_fetch(&inits, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&opening);
    return problem;
}

API const char *nvmlErrorString(int code) {
    switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case GPU_IS_LOST: return "GPU is lost";
    case INSUFFICIENT_RESOURCES: return "Insufficient Resources";
    case VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

static int give_text(const char *text, char *out, unsigned size) {
    if (!out || strlen(text) >= size) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return SUCCESS;
}

API int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    int problem;
    File *file = driver(&problem);
    return problem ? problem : give_text(file->driver_version, out, size);
}

API int nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    int problem;
    File *file = driver(&problem);
    return problem ? problem : give_text(file->driver_version, out, size);
}

API int nvmlSystemGetCudaDriverVersion(int *out) {
    int problem;
    driver(&problem);
    return problem ? problem : (*out = 12040, SUCCESS);
}

API int nvmlSystemGetCudaDriverVersion_v2(int *out) { return nvmlSystemGetCudaDriverVersion(out); }

API int nvmlDeviceGetCount_v2(unsigned *count) {
    int problem;
    File *file = driver(&problem);
    if (!problem) *count = (unsigned)file->count;
    return problem;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **out) {
    int problem;
    File *file = driver(&problem);
    if (problem) return problem;
    if (index >= file->count) return INVALID_ARGUMENT;
    Device *device = &devices[index];
    Gpu gpu;
    Cell *cell;
    problem = look(device, 0, &gpu, &cell);
    if (!problem) *out = device;
    return problem;
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, Device **out) {
    int problem;
    File *file = driver(&problem);
    if (problem) return problem;
    for (uint64_t i = 0; i < file->count; i++) {
        Gpu gpu = {0};
        Cell *cell;
        problem = look(&devices[i], 0, &gpu, &cell);
        if (!strcmp(gpu.uuid, uuid)) {
            if (!problem) *out = &devices[i];
            return problem;
        }
    }
    return NOT_FOUND;
}

API int nvmlDeviceGetIndex(Device *device, unsigned *out) {
    LOOK(0);
    *out = (unsigned)device->index;
    return SUCCESS;
}

API int nvmlDeviceGetMinorNumber(Device *device, unsigned *out) { return nvmlDeviceGetIndex(device, out); }

API int nvmlDeviceGetName(Device *device, char *out, unsigned size) {
    LOOK(0);
    return give_text(gpu.name, out, size);
}

API int nvmlDeviceGetUUID(Device *device, char *out, unsigned size) {
    LOOK(0);
    return give_text(gpu.uuid, out, size);
}

API int nvmlDeviceGetArchitecture(Device *device, unsigned *out) {
    LOOK(0);
    *out = (unsigned)gpu.architecture;
    return SUCCESS;
}

API int nvmlDeviceGetPowerUsage(Device *device, unsigned *mw) {
    LOOK(MISSING_POWER);
    *mw = (unsigned)lround((shown_power_w(&gpu, gpu.power_is_average != 0) + gpu.module_extra_w) * 1000);
    return SUCCESS;
}

API int nvmlDeviceGetPowerManagementMode(Device *device, unsigned *mode) {
    LOOK(MISSING_LIMITS);
    *mode = 1;
    return SUCCESS;
}

API int nvmlDeviceGetPowerManagementLimit(Device *device, unsigned *mw) {
    LOOK(MISSING_LIMITS);
    *mw = (unsigned)gpu.limit_mw;
    return SUCCESS;
}

API int nvmlDeviceGetPowerManagementDefaultLimit(Device *device, unsigned *mw) {
    LOOK(MISSING_LIMITS);
    *mw = (unsigned)gpu.default_mw;
    return SUCCESS;
}

API int nvmlDeviceGetEnforcedPowerLimit(Device *device, unsigned *mw) {
    LOOK(MISSING_LIMITS);
    *mw = (unsigned)enforced_mw(&gpu);
    return SUCCESS;
}

API int nvmlDeviceGetPowerManagementLimitConstraints(Device *device, unsigned *min_mw, unsigned *max_mw) {
    LOOK(MISSING_LIMITS);
    *min_mw = (unsigned)gpu.min_mw;
    *max_mw = (unsigned)gpu.max_mw;
    return SUCCESS;
}

API int nvmlDeviceSetPowerManagementLimit(Device *device, unsigned mw) {
    LOOK(MISSING_LIMITS);
    CHANGE(cell, live, { live->limit_calls++; });
    if (gpu.no_permission) return NO_PERMISSION;
    if (mw < gpu.min_mw || mw > gpu.max_mw) return INVALID_ARGUMENT;
    CHANGE(cell, live, {
        if (live->lag_ns) {
            live->pending_mw = mw;
            live->pending_at_ns = live->updated_ns + live->lag_ns;
        } else {
            live->limit_mw = mw;
            live->pending_at_ns = 0;
        }
    });
    return SUCCESS;
}

typedef struct {
    unsigned version;
    uint8_t scope;
    unsigned mw;
} PowerValue;

API int nvmlDeviceSetPowerManagementLimit_v2(Device *device, PowerValue *value) {
    if (value->version != 0x0200000C) return VERSION_MISMATCH;
    if (value->scope != 0) return NOT_SUPPORTED;
    return nvmlDeviceSetPowerManagementLimit(device, value->mw);
}

API int nvmlDeviceGetTotalEnergyConsumption(Device *device, unsigned long long *mj) {
    LOOK(MISSING_ENERGY);
    uint64_t energy_mj = 0;
    problem = shown_energy_mj(&gpu, &energy_mj);
    if (!problem) *mj = energy_mj;
    return problem;
}

typedef struct {
    unsigned gpu, memory;
} Utilization;

API int nvmlDeviceGetUtilizationRates(Device *device, Utilization *out) {
    LOOK(MISSING_UTILIZATION);
    if (gpu.mig) return NOT_SUPPORTED;
    Now now = state_at(&gpu, gpu.updated_ns);
    *out = (Utilization){(unsigned)lround(now.load * 100), (unsigned)lround(now.load * 60)};
    return SUCCESS;
}

API int nvmlDeviceGetTemperature(Device *device, unsigned sensor, unsigned *out) {
    if (sensor) return INVALID_ARGUMENT;
    LOOK(MISSING_TEMPERATURE);
    *out = (unsigned)lround(gpu.temperature_c);
    return SUCCESS;
}

typedef struct {
    unsigned version, sensor;
    int temperature;
} Temperature;

API int nvmlDeviceGetTemperatureV(Device *device, Temperature *out) {
    if (out->version != 0x100000C) return VERSION_MISMATCH;
    if (out->sensor) return INVALID_ARGUMENT;
    LOOK(MISSING_TEMPERATURE);
    out->temperature = (int)lround(gpu.temperature_c);
    return SUCCESS;
}

API int nvmlDeviceGetMaxClockInfo(Device *device, unsigned type, unsigned *mhz) {
    if (type > 3) return INVALID_ARGUMENT;
    LOOK(MISSING_CLOCKS);
    *mhz = (unsigned)(type == 2 ? gpu.memory_mhz : gpu.max_mhz);
    return SUCCESS;
}

API int nvmlDeviceGetClockInfo(Device *device, unsigned type, unsigned *mhz) {
    if (type > 3) return INVALID_ARGUMENT;
    LOOK(MISSING_CLOCKS);
    double clock_mhz = state_at(&gpu, gpu.updated_ns).clock * (double)gpu.max_mhz;
    *mhz = type == 2 ? (unsigned)gpu.memory_mhz : (unsigned)(15 * lround(clock_mhz / 15));
    return SUCCESS;
}

static int lock_clocks(Device *device, unsigned min_mhz, unsigned max_mhz, int memory) {
    LOOK(MISSING_CLOCKS);
    if (gpu.no_permission) return NO_PERMISSION;
    if (min_mhz > max_mhz) return INVALID_ARGUMENT;
    CHANGE(cell, live, {
        if (memory) {
            live->memory_lock_min_mhz = min_mhz;
            live->memory_lock_max_mhz = max_mhz;
        } else {
            live->lock_min_mhz = min_mhz;
            live->lock_max_mhz = max_mhz;
        }
    });
    return SUCCESS;
}

API int nvmlDeviceSetGpuLockedClocks(Device *device, unsigned min_mhz, unsigned max_mhz) {
    return max_mhz ? lock_clocks(device, min_mhz, max_mhz, 0) : INVALID_ARGUMENT;
}

API int nvmlDeviceSetMemoryLockedClocks(Device *device, unsigned min_mhz, unsigned max_mhz) {
    return max_mhz ? lock_clocks(device, min_mhz, max_mhz, 1) : INVALID_ARGUMENT;
}

API int nvmlDeviceResetGpuLockedClocks(Device *device) { return lock_clocks(device, 0, 0, 0); }
API int nvmlDeviceResetMemoryLockedClocks(Device *device) { return lock_clocks(device, 0, 0, 1); }

API int nvmlDeviceGetSupportedMemoryClocks(Device *device, unsigned *count, unsigned *mhz) {
    LOOK(MISSING_CLOCKS);
    int fits = mhz && *count >= 1;
    *count = 1;
    if (!fits) return INSUFFICIENT_SIZE;
    mhz[0] = (unsigned)gpu.memory_mhz;
    return SUCCESS;
}

API int nvmlDeviceGetSupportedGraphicsClocks(Device *device, unsigned memory_mhz, unsigned *count, unsigned *mhz) {
    LOOK(MISSING_CLOCKS);
    if (memory_mhz != gpu.memory_mhz) return NOT_FOUND;
    unsigned needed = (unsigned)((gpu.max_mhz - gpu.min_mhz) / 15 + 1), given = *count;
    *count = needed;
    if (!mhz || given < needed) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < needed; i++) mhz[i] = (unsigned)gpu.max_mhz - 15 * i;
    return SUCCESS;
}

API int nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *out) {
    LOOK(MISSING_CLOCKS);
    Now now = state_at(&gpu, gpu.updated_ns);
    *out = (now.working ? 0 : 0x1) | (gpu.lock_max_mhz && gpu.lock_max_mhz < gpu.max_mhz ? 0x2 : 0) | (now.capped ? 0x4 : 0);
    return SUCCESS;
}

API int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *out) {
    return nvmlDeviceGetCurrentClocksEventReasons(device, out);
}

API int nvmlDeviceGetSupportedClocksEventReasons(Device *device, unsigned long long *out) {
    LOOK(MISSING_CLOCKS);
    *out = 0x7;
    return SUCCESS;
}

API int nvmlDeviceGetPersistenceMode(Device *device, unsigned *mode) {
    LOOK(0);
    *mode = gpu.persistence != 0;
    return SUCCESS;
}

API int nvmlDeviceSetPersistenceMode(Device *device, unsigned mode) {
    LOOK(0);
    if (gpu.no_permission) return NO_PERMISSION;
    CHANGE(cell, live, { live->persistence = mode != 0; });
    return SUCCESS;
}

typedef struct {
    unsigned pid;
    unsigned long long memory_bytes;
    unsigned gpu_instance, compute_instance;
} ProcessInfo;

/* One row per process, however often it is attached. */
static unsigned processes_of(const Gpu *gpu, ProcessInfo *rows) {
    unsigned count = 0;
    for (uint64_t i = 0; i < gpu->process_count; i++) {
        const Process *process = &gpu->processes[i];
        unsigned row = 0;
        while (row < count && rows[row].pid != process->pid) row++;
        if (row == count)
            rows[count++] = (ProcessInfo){(unsigned)process->pid, 0, (unsigned)process->gpu_instance,
                                          (unsigned)process->compute_instance};
        rows[row].memory_bytes += process->memory_bytes;
    }
    return count;
}

API int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, ProcessInfo *out) {
    LOOK(MISSING_PROCESSES);
    ProcessInfo rows[MAX_PROCESSES];
    unsigned needed = processes_of(&gpu, rows), given = *count;
    *count = needed;
    if (needed > given || (needed && !out)) return INSUFFICIENT_SIZE;
    if (needed) memcpy(out, rows, needed * sizeof *rows);
    return SUCCESS;
}

API int nvmlDeviceGetComputeRunningProcesses_v2(Device *device, unsigned *count, ProcessInfo *out) {
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, out);
}

API int nvmlDeviceGetGraphicsRunningProcesses_v3(Device *device, unsigned *count, ProcessInfo *out) {
    (void)out;
    LOOK(MISSING_PROCESSES);
    *count = 0;
    return SUCCESS;
}

API int nvmlDeviceGetGraphicsRunningProcesses_v2(Device *device, unsigned *count, ProcessInfo *out) {
    return nvmlDeviceGetGraphicsRunningProcesses_v3(device, count, out);
}

typedef struct {
    unsigned pid;
    unsigned long long at_us;
    unsigned sm, memory, encoder, decoder;
} UtilizationSample;

API int nvmlDeviceGetProcessUtilization(Device *device, UtilizationSample *out, unsigned *count, unsigned long long since_us) {
    (void)since_us;
    LOOK(MISSING_UTILIZATION);
    if (gpu.mig) return NOT_SUPPORTED;
    Now now = state_at(&gpu, gpu.updated_ns);
    ProcessInfo rows[MAX_PROCESSES];
    unsigned needed = processes_of(&gpu, rows), given = *count;
    *count = needed;
    if (!needed) return NOT_FOUND; /* what the real one says when there is no sample */
    if (!out || given < needed) return INSUFFICIENT_SIZE;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    for (unsigned row = 0; row < needed; row++) {
        double load = 0;
        for (uint64_t i = 0; i < gpu.process_count; i++)
            if (gpu.processes[i].pid == rows[row].pid && works_at(&gpu.processes[i], gpu.updated_ns))
                load += gpu.processes[i].intensity * now.share;
        out[row] = (UtilizationSample){rows[row].pid, (unsigned long long)t.tv_sec * 1000000ull + (unsigned long long)t.tv_nsec / 1000,
                                       (unsigned)lround(load * 100), (unsigned)lround(load * 60), 0, 0};
    }
    return SUCCESS;
}

typedef struct {
    uint32_t field, scope;
    int64_t at_us, latency_us;
    unsigned type;
    int result;
    union {
        double d;
        unsigned u;
        unsigned long long ull;
    } value;
} FieldValue;

enum { TYPE_UNSIGNED = 1, TYPE_UNSIGNED_LONG_LONG = 3, SCOPE_GPU = 0, SCOPE_MODULE = 1 };

static int field_value(const Gpu *gpu, FieldValue *field) {
    int module = field->scope == SCOPE_MODULE;
    if (field->scope > SCOPE_MODULE || (module && gpu->module_extra_w <= 0)) return NOT_SUPPORTED;
    double extra_w = module ? gpu->module_extra_w : 0;
    field->type = TYPE_UNSIGNED;
    switch (field->field) {
    case 83: {
        uint64_t mj = 0;
        int problem = gpu->missing & MISSING_ENERGY ? NOT_SUPPORTED : shown_energy_mj(gpu, &mj);
        field->type = TYPE_UNSIGNED_LONG_LONG;
        field->value.ull = mj;
        return problem;
    }
    case 185: field->value.u = (unsigned)lround((shown_power_w(gpu, 1) + extra_w) * 1000); break;
    case 186: field->value.u = (unsigned)lround((shown_power_w(gpu, 0) + extra_w) * 1000); break;
    case 187: field->value.u = (unsigned)gpu->min_mw; break;
    case 188: field->value.u = (unsigned)gpu->max_mw; break;
    case 189: field->value.u = (unsigned)gpu->default_mw; break;
    case 190: field->value.u = (unsigned)enforced_mw(gpu); break;
    case 192: field->value.u = (unsigned)(gpu->pending_at_ns ? gpu->pending_mw : gpu->limit_mw); break;
    default: return NOT_SUPPORTED;
    }
    return field->field <= 186 ? (gpu->missing & MISSING_POWER ? NOT_SUPPORTED : SUCCESS)
                               : (gpu->missing & MISSING_LIMITS ? NOT_SUPPORTED : SUCCESS);
}

API int nvmlDeviceGetFieldValues(Device *device, int count, FieldValue *fields) {
    LOOK(MISSING_FIELDS);
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    for (int i = 0; i < count; i++) {
        fields[i].at_us = (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
        fields[i].latency_us = 0;
        fields[i].result = field_value(&gpu, &fields[i]);
    }
    return SUCCESS;
}

typedef struct {
    unsigned long long total, free, used;
} Memory;

static unsigned long long used_memory(const Gpu *gpu) {
    unsigned long long used = 0;
    for (uint64_t i = 0; i < gpu->process_count; i++) used += gpu->processes[i].memory_bytes;
    return used < gpu->memory_bytes ? used : gpu->memory_bytes;
}

API int nvmlDeviceGetMemoryInfo(Device *device, Memory *out) {
    LOOK(0);
    unsigned long long used = used_memory(&gpu);
    *out = (Memory){gpu.memory_bytes, gpu.memory_bytes - used, used};
    return SUCCESS;
}

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} MemoryV2;

API int nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *out) {
    if (out->version != 0x02000028) return VERSION_MISMATCH;
    LOOK(0);
    unsigned long long used = used_memory(&gpu);
    *out = (MemoryV2){out->version, gpu.memory_bytes, 0, gpu.memory_bytes - used, used};
    return SUCCESS;
}

API int nvmlDeviceGetMigMode(Device *device, unsigned *now, unsigned *pending) {
    LOOK(MISSING_MIG);
    *now = gpu.mig != 0;
    *pending = gpu.mig_pending != 0;
    return SUCCESS;
}

API int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *count) {
    LOOK(MISSING_MIG);
    *count = gpu.mig ? 7 : 0;
    return SUCCESS;
}
