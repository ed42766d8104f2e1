/* draft_table.c - lookup in a static n-gram table of the target's own answers, mapped read-only. One-hot q,
 * so that a wrong entry, a collision or a foreign file costs acceptance and never exactness.
 *
 * The file, little endian: 48 bytes "SPCN" | u32 version 1 | u32 n_orders (1 to 8) | u32 n_ids |
 * id_map_sha256 [32 bytes]; then for each order, longest first: u32 order (1 to 16) | u32 n_slots (a power of
 * two) | n_slots slots of 12 bytes, {u32 tag, i32 next, u16 count, u16 total}: `next` followed the context
 * `count` of the `total` times it was seen (both stop at 65535); tag 0 is an empty slot. A context of `order`
 * ids, oldest first, is found by h = 0x9E3779B97F4A7C15 * order;  for each id: h = (h ^ id) *
 * 0xBF58476D1CE4E5B9, h ^= h >> 32   (mod 2^64) tag = h >> 32, 1 if that is 0;  slots h mod n_slots and on,
 * wrapping, at most 32 of them, up to the first empty one. */
#include "core/draft/drafting.h"
#include "core/draft/kinds.h"
#include "core/io/error.h"
#include "core/io/files.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER 48
#define MAX_ORDERS 8
#define PROBES 32

typedef struct slot {
  uint32_t tag;
  int32_t next;
  uint16_t count, total;
} slot;
typedef struct order {
  int32_t length;
  uint32_t n_slots;
  const slot *slots;
} order;

typedef struct table {
  void *data; /* the mapped file */
  size_t size;
  int32_t n_ids, min_count, n_orders;
  order orders[MAX_ORDERS];
} table;

static uint32_t read_word(const table *t, size_t at) {
  uint32_t v;
  memcpy(&v, (const char *)t->data + at, sizeof v);
  return v;
}

/* One order's header and slots at *at. */
static bool read_order(table *t, size_t *at, order *o) {
  if (t->size - *at < 8) return false;
  uint32_t length = read_word(t, *at), n = read_word(t, *at + 4);
  *at += 8;
  if (length < 1 || length > 16 || !n || n & (n - 1) || n > (t->size - *at) / sizeof(slot)) return false;
  *o = (order){(int32_t)length, n, (const slot *)(const void *)((const char *)t->data + *at)};
  *at += (size_t)n * sizeof(slot);
  return true;
}

static bool read_orders(table *t) {
  size_t at = HEADER;
  if (t->size < HEADER || memcmp(t->data, "SPCN", 4) || read_word(t, 4) != 1) return false;
  uint32_t n = read_word(t, 8);
  if (n < 1 || n > MAX_ORDERS) return false;
  for (t->n_orders = 0; t->n_orders < (int32_t)n; t->n_orders++) {
    order *o = &t->orders[t->n_orders];
    if (!read_order(t, &at, o) || (t->n_orders && o->length >= o[-1].length)) return false;
  }
  return at == t->size;
}

static int map_file(table *t, const char *path) {
  struct stat found;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return specc_error(
        SPECC_E_IO, "the n-gram table %s cannot be opened; check the path or build the bundle again", path);
  bool regular = !fstat(file, &found) && S_ISREG(found.st_mode) && found.st_size >= HEADER;
  t->size = regular ? (size_t)found.st_size : 0;
  t->data = regular ? mmap(NULL, t->size, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
  close(file);
  if (t->data != MAP_FAILED) return SPECC_OK;
  t->data = NULL;
  return specc_error(
      SPECC_E_FORMAT, "%s is no n-gram table that can be mapped; build the bundle again", path);
}

static uint64_t hash_context(const int32_t *ids, int32_t n) {
  uint64_t h = 0x9E3779B97F4A7C15u * (uint64_t)n;
  for (int32_t i = 0; i < n; i++) {
    h = (h ^ (uint64_t)(uint32_t)ids[i]) * 0xBF58476D1CE4E5B9u;
    h ^= h >> 32;
  }
  return h;
}

/* The slot of a context, NULL if there is none worth a proposal. */
static const slot *find(const table *t, const order *o, const int32_t *ids) {
  uint64_t h = hash_context(ids, o->length);
  uint32_t tag = (uint32_t)(h >> 32) ? (uint32_t)(h >> 32) : 1;
  for (uint32_t i = 0; i < PROBES && i < o->n_slots; i++) {
    const slot *s = &o->slots[((uint32_t)h + i) & (o->n_slots - 1)];
    if (!s->tag) return NULL;
    if (s->tag == tag)
      return s->next >= 0 && s->next < t->n_ids && s->count >= t->min_count && s->count <= s->total ? s
                                                                                                    : NULL;
  }
  return NULL;
}

static int table_open(void *self, void **state) {
  *state = self;
  return SPECC_OK;
}
static int table_commit(void *state, int32_t n_keep) {
  (void)state;
  (void)n_keep;
  return SPECC_OK;
}
static void table_close(void *state) {
  (void)state;
}

/* The longest context that the table knows. */
static int table_next(void *state, const specc_draft_context *c, int32_t depth, specc_proposal *out) {
  const table *t = state;
  int32_t n = c->n_tokens + depth;
  for (int32_t i = 0; i < t->n_orders; i++) {
    const slot *s =
        t->orders[i].length <= n ? find(t, &t->orders[i], c->tokens + n - t->orders[i].length) : NULL;
    if (!s) continue;
    int32_t source =
        SOURCE_TABLE + 4 * (s->count >= 4) + (s->count == s->total ? 3 : 4 * s->count / s->total);
    return specc_draft_pays(c->sampler, depth, source, 0) ? append_one_hot(c, depth, s->next, out) : SPECC_OK;
  }
  return SPECC_OK;
}

static int table_propose(void *state, const specc_draft_context *c, specc_proposal *out) {
  return propose_chain(table_next, state, c, out);
}

static void table_release(void *self) {
  table *t = self;
  if (t->data) munmap(t->data, t->size);
  free(t);
}

int specc_table_drafter(const char *path, int32_t n_ids, int32_t min_count, specc_drafter *drafter) {
  if (!path || !drafter || n_ids < 1 || min_count < 1 || min_count > 65535)
    return specc_error(SPECC_E_ARGUMENT,
        "a static n-gram drafter needs a path, the number of ids, and a min_count of 1 to 65535");
  table *t = calloc(1, sizeof *t);
  if (!t) return specc_error(SPECC_E_MEMORY, "no memory for a drafter");
  t->n_ids = n_ids, t->min_count = min_count;
  int code = map_file(t, path);
  if (!code && !read_orders(t))
    code = specc_error(SPECC_E_FORMAT, "%s is no n-gram table of this version; build the bundle again", path);
  if (!code && read_word(t, 12) != (uint32_t)n_ids)
    code = specc_error(SPECC_E_FORMAT,
        "the n-gram table %s is of a tokenizer with %u ids, not %d; make it for this target", path,
        read_word(t, 12), n_ids);
  if (code) return table_release(t), code;
  *drafter = (specc_drafter){.name = "table",
      .self = t,
      .open = table_open,
      .propose = table_propose,
      .commit = table_commit,
      .close = table_close,
      .release = table_release,
      .next = table_next};
  return SPECC_OK;
}

/* ------------------------------------------------------------------ from a bundle */
int open_table_draft(const draft_source *source, specc_drafter *drafter) {
  const manifest *m = source->manifest;
  const json *draft = source->entry;
  const char *file;
  char path[PATH_BYTES];
  int32_t least = 0;
  int code = manifest_string(m, draft, "draft", "file", &file);
  if (!code) code = manifest_int(m, draft, "draft", "min_count", 1, 65535, &least);
  if (!code) code = manifest_file(m, file, path);
  return code ? code : specc_table_drafter(path, m->n_ids, least, drafter);
}
