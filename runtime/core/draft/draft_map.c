/* draft_map.c - a reduced draft vocabulary: which target id each column of a draft's logits stands for. */
#include "core/io/error.h"
#include "core/io/files.h"
#include "specc_extend.h"
#include <stdlib.h>
#include <string.h>

#define MAX_MAP_BYTES ((size_t)64 << 20)
#define HEADER 12 /* "SPCI", u32 version, u32 n; little endian */

/* Offsets, relative or repeated ids all fall to this: absolute ids of the target, strictly rising. */
static int check_ids(const char *name, const int32_t *ids, int32_t n, int32_t n_ids) {
  if (n < 1 || n > n_ids)
    return specc_error(SPECC_E_FORMAT,
        "%s maps %d columns to %d ids; a reduced vocabulary has 1 to that many", name, n, n_ids);
  for (int32_t c = 0; c < n; c++) {
    if (ids[c] < 0 || ids[c] >= n_ids)
      return specc_error(SPECC_E_FORMAT,
          "%s maps column %d to id %d, but the target's ids are 0 to %d; build the bundle again", name, c,
          ids[c], n_ids - 1);
    if (c && ids[c] <= ids[c - 1])
      return specc_error(SPECC_E_FORMAT,
          "%s maps column %d to id %d after id %d; ids must be the target's own, strictly rising", name, c,
          ids[c], ids[c - 1]);
  }
  return SPECC_OK;
}

static int create_map(const char *name, const int32_t *ids, int32_t n, int32_t n_ids, specc_draft_map **out) {
  int code = check_ids(name, ids, n, n_ids);
  if (code) return code;
  specc_draft_map *m = malloc(sizeof *m + ((size_t)n + (size_t)n_ids) * sizeof(int32_t));
  if (!m) return specc_error(SPECC_E_MEMORY, "no memory for a map of %d columns", n);
  int32_t *own = (int32_t *)(m + 1), *column = own + n;
  memcpy(own, ids, (size_t)n * sizeof *ids);
  for (int32_t i = 0; i < n_ids; i++) column[i] = -1;
  for (int32_t c = 0; c < n; c++) column[ids[c]] = c;
  *m = (specc_draft_map){n, n_ids, own, column};
  *out = m;
  return SPECC_OK;
}

int specc_draft_map_create(const int32_t *ids, int32_t n, int32_t n_ids, specc_draft_map **map) {
  if (!ids || !map || n_ids < 1)
    return specc_error(SPECC_E_ARGUMENT,
        "specc_draft_map_create needs ids, a place for the map, and the target's number of ids");
  *map = NULL;
  return create_map("the draft map", ids, n, n_ids, map);
}

static uint32_t read_word(const char *at) {
  uint32_t v;
  memcpy(&v, at, sizeof v);
  return v;
}

int specc_draft_map_read(const char *path, int32_t n_ids, specc_draft_map **map) {
  char *data = NULL;
  size_t size = 0;
  if (!path || !map || n_ids < 1)
    return specc_error(SPECC_E_ARGUMENT,
        "specc_draft_map_read needs a path, a place for the map, and the target's number of ids");
  *map = NULL;
  int code = file_read(path, MAX_MAP_BYTES, &data, &size);
  if (code) return code;
  if (size < HEADER || memcmp(data, "SPCI", 4) || read_word(data + 4) != 1 || (size - HEADER) % 4 ||
      read_word(data + 8) != (size - HEADER) / 4)
    code = specc_error(SPECC_E_FORMAT, "%s is no table of draft ids; build the bundle again", path);
  else
    code = create_map(
        path, (const int32_t *)(const void *)(data + HEADER), (int32_t)read_word(data + 8), n_ids, map);
  free(data);
  return code;
}

void specc_draft_map_free(specc_draft_map *map) {
  free(map);
}
