/* expect.h - the few words that the C tests are written in. */
#ifndef SPECC_EXPECT_H
#define SPECC_EXPECT_H
#include "specc_judge.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SKIP 77 /* exit status of a test that lacks what it needs */

static int failures;

#define EXPECT(condition) expect_at((condition) != 0, __FILE__, __LINE__, #condition)
static inline int expect_at(int holds, const char *file, int line, const char *text) {
  if (!holds) failures++, fprintf(stderr, "%s:%d: %s\n", file, line, text);
  return holds;
}

/* A call that must fail with this code and say this. */
#define EXPECT_ERROR(call, code, says) expect_error_at((call), (code), (says), __FILE__, __LINE__, #call)
static inline void expect_error_at(
    int got, int code, const char *says, const char *file, int line, const char *text) {
  const char *sentence = specc_last_error();
  if (got == code && strstr(sentence, says)) return;
  failures++;
  fprintf(stderr, "%s:%d: %s gave %d, not %d with '%s': %s\n", file, line, text, got, code, says, sentence);
}

#define EXPECT_OK(call) expect_ok_at((call), __FILE__, __LINE__, #call)
static inline int expect_ok_at(int got, const char *file, int line, const char *text) {
  if (got) failures++, fprintf(stderr, "%s:%d: %s gave %d: %s\n", file, line, text, got, specc_last_error());
  return !got;
}

static inline int finish(const char *name) {
  printf("%s: %s\n", name, failures ? "FAILED" : "passed");
  return failures != 0;
}
#endif
