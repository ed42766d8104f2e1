/* device.c - what certificates are bound to: the processor's model and its features. Never fails. */
#include "core/io/sha256.h"
#include "specc.h"
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#define CPUINFO_BYTES (1 << 20) /* of /proc/cpuinfo: many more cores than that need not be read */
#define MAX_FLAGS 1024
#define MAX_PARTS 16

/* ------------------------------------------------------------------ /proc/cpuinfo */
static char *read_cpuinfo(void) {
  FILE *file = fopen("/proc/cpuinfo", "re");
  char *text = file ? malloc(CPUINFO_BYTES + 1) : NULL;
  if (text) text[fread(text, 1, CPUINFO_BYTES, file)] = 0;
  if (file) fclose(file);
  return text;
}

/* Value of the first line "key : value" at or after text; copied to out without surrounding space. NULL: no
 * such line, else where to look for the next. */
static const char *find_value(const char *text, const char *key, char *out, size_t n_out) {
  size_t n = strlen(key);
  for (const char *line = text, *end; *line; line = *end ? end + 1 : end) {
    end = line + strcspn(line, "\n");
    const char *p = line + n;
    if ((size_t)(end - line) <= n || strncmp(line, key, n)) continue;
    while (*p == ' ' || *p == '\t') p++;
    if (*p++ != ':') continue;
    while (p < end && isspace((unsigned char)*p)) p++;
    snprintf(out, n_out, "%.*s", (int)(end - p), p);
    return end;
  }
  return NULL;
}

static int compare(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Adds the words of text to the hash in alphabetical order: the kernel's order is not a property of the
 * processor. */
static void add_sorted(specc_sha256 *h, char *text) {
  char *words[MAX_FLAGS], *rest;
  size_t n = 0;
  for (char *word = strtok_r(text, " \t", &rest); word && n < MAX_FLAGS; word = strtok_r(NULL, " \t", &rest))
    words[n++] = word;
  qsort(words, n, sizeof *words, compare);
  for (size_t i = 0; i < n; i++) {
    specc_sha256_add(h, words[i], strlen(words[i]));
    specc_sha256_add(h, " ", 1);
  }
}

/* "0x41-0xd0b 0x41-0xd05": each kind of core once, in the order of their numbers. */
static void list_arm_parts(const char *text, char *out, size_t n_out) {
  char implementer[32], part[32], kinds[MAX_PARTS][72], *sorted[MAX_PARTS];
  size_t n = 0, used = 0;
  for (const char *p = text;
      n < MAX_PARTS && (p = find_value(p, "CPU implementer", implementer, sizeof implementer));) {
    if (!find_value(p, "CPU part", part, sizeof part)) break;
    snprintf(kinds[n], sizeof kinds[n], "%s-%s", implementer, part);
    bool known = false;
    for (size_t i = 0; i < n; i++) known = known || !strcmp(kinds[i], kinds[n]);
    if (!known) sorted[n] = kinds[n], n++;
  }
  qsort(sorted, n, sizeof *sorted, compare);
  for (size_t i = 0; i < n && used < n_out; i++)
    used += (size_t)snprintf(out + used, n_out - used, "%s%s", i ? " " : "", sorted[i]);
}

/* Processor name and space-separated features; both end empty where the system does not say. */
static void describe(const char *cpuinfo, char *name, size_t n_name, char *flags, size_t n_flags) {
  name[0] = flags[0] = 0;
  if (!cpuinfo) return;
  find_value(cpuinfo, "model name", name, n_name);
  if (!find_value(cpuinfo, "flags", flags, n_flags)) find_value(cpuinfo, "Features", flags, n_flags);
  if (!name[0]) list_arm_parts(cpuinfo, name, n_name);
}

int specc_device(char *name, size_t n_name, char *fingerprint, size_t n_fingerprint) {
  char model[256], flags[8192], hex[65];
  struct utsname system = {0};
  char *cpuinfo = read_cpuinfo();
  describe(cpuinfo, model, sizeof model, flags, sizeof flags);
  free(cpuinfo);
  uname(&system);
  if (!model[0]) snprintf(model, sizeof model, "%s", system.machine[0] ? system.machine : "unknown");
  specc_sha256 h;
  specc_sha256_begin(&h);
  specc_sha256_add(&h, system.machine, strlen(system.machine));
  specc_sha256_add(&h, "\n", 1);
  specc_sha256_add(&h, model, strlen(model));
  specc_sha256_add(&h, "\n", 1);
  add_sorted(&h, flags);
  specc_sha256_end(&h, hex);
  if (name && n_name) snprintf(name, n_name, "%s", model);
  if (fingerprint && n_fingerprint) snprintf(fingerprint, n_fingerprint, "%s", hex);
  return SPECC_OK;
}
