/* kinds.h - the draft kinds that a bundle may name. */
#ifndef SPECC_DRAFT_KINDS_H
#define SPECC_DRAFT_KINDS_H
#include "core/manifest/manifest.h"
#include "specc_extend.h"

/* One row a kind: its name in the manifest and the function of its own file that opens it. A new kind needs
 * this row and that file. Kinds marked E run the engine engines.draft, which their function opens. */
#define DRAFT_KINDS(ROW)                                                                                     \
  ROW("ngram", open_ngram_draft)                                                                             \
  ROW("table", open_table_draft)                                                                             \
  ROW("feature", open_feature_draft) /* E */                                                                 \
  ROW("medusa", open_medusa_draft)   /* E */                                                                 \
  ROW("staged", open_staged_draft)                                                                           \
  ROW("model", open_model_draft)         /* E */                                                             \
  ROW("hierarchy", open_hierarchy_draft) /* E */                                                             \
  ROW("early-exit", open_model_draft)    /* E */

/* What a kind is opened from. */
typedef struct draft_source {
  const manifest *manifest;
  const json *entry; /* the manifest's `draft`, or a part of it that is a draft itself */
  /* Opens such a part by its own kind; drafter->name stays NULL for the kind "none". */
  int (*open_part)(const manifest *m, const json *part, specc_drafter *drafter);
} draft_source;

typedef int draft_opener(const draft_source *source, specc_drafter *drafter);
#define DECLARE_OPENER(name, open) draft_opener open;
DRAFT_KINDS(DECLARE_OPENER)
#undef DECLARE_OPENER

/* Opens the manifest's draft. *drafter must be zeros; its name stays NULL for the kind "none". */
int open_draft(const manifest *m, specc_drafter *drafter);
#endif
