/* kinds.c - the manifest's `draft` to a drafter, by the table of kinds. */
#include "core/draft/kinds.h"
#include <stdio.h>
#include <string.h>

typedef struct draft_kind {
  const char *name;
  draft_opener *open;
} draft_kind;

#define TABLE_ROW(name, open) {name, open},
static const draft_kind kinds[] = {DRAFT_KINDS(TABLE_ROW)};
#undef TABLE_ROW
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static int refuse_kind(const manifest *m) {
  char names[256] = "";
  size_t n = 0;
  for (int i = 0; i < N_KINDS && n < sizeof names; i++)
    n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", kinds[i].name);
  if (n < sizeof names) snprintf(names + n, sizeof names - n, " or none");
  return manifest_refuse(m, "draft", "kind", names);
}

static int open_part(const manifest *m, const json *part, specc_drafter *drafter) {
  const draft_source source = {m, part, open_part};
  const char *name;
  int code = manifest_string(m, part, "draft", "kind", &name);
  if (code || !strcmp(name, "none")) return code;
  for (int i = 0; i < N_KINDS; i++)
    if (!strcmp(name, kinds[i].name)) return kinds[i].open(&source, drafter);
  return refuse_kind(m);
}

int open_draft(const manifest *m, specc_drafter *drafter) {
  const json *entry;
  int code = manifest_object(m, m->root, "manifest", "draft", &entry);
  return code ? code : open_part(m, entry, drafter);
}
