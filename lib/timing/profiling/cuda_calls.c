/* Counts a process's CUDA calls by name: a CUPTI callback, which CUDA's driver loads during its initialisation
   (CUDA_INJECTION64_PATH). Python loads the same file to clear and to write the counts; the system does not load it
   twice (lib/timing/profiling/run.py).
   CUPTI: https://docs.nvidia.com/cupti/main/main.html, "CUPTI Callback API". */

#include <cupti.h>
#include <stdio.h>
#include <string.h>

enum { DOMAINS = 2, MOST = 2048 }; /* callback ids per interface; CUDA 13 uses fewer than a thousand */

static const char *const interfaces[DOMAINS] = {"runtime", "driver"};
static unsigned long counts[DOMAINS][MOST];
static const char *names[DOMAINS][MOST]; /* valid as long as CUPTI is loaded */
static CUpti_SubscriberHandle subscriber;
static int subscribed;

static void CUPTIAPI count(void *unused, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data) {
  const CUpti_CallbackData *call = (const CUpti_CallbackData *)data;
  const int interface = domain == CUPTI_CB_DOMAIN_DRIVER_API;
  (void)unused;
  if (call->callbackSite != CUPTI_API_ENTER || id >= MOST) return;
  names[interface][id] = call->functionName;
  __atomic_fetch_add(&counts[interface][id], 1ul, __ATOMIC_RELAXED); /* PyTorch calls from several threads */
}

/* The driver calls this once. Returns 1 if calls are counted; else CUDA runs as if without this library. */
int InitializeInjection(void) {
  if (subscribed) return 1;
  subscribed = cuptiSubscribe(&subscriber, (CUpti_CallbackFunc)count, NULL) == CUPTI_SUCCESS &&
               cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API) == CUPTI_SUCCESS &&
               cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API) == CUPTI_SUCCESS;
  return subscribed;
}

void clear_counts(void) { memset(counts, 0, sizeof counts); }

/* Writes a line for each called function: interface, name, number of calls. Returns 0 on success. */
int write_counts(const char *path) {
  FILE *file = fopen(path, "w");
  if (file == NULL) return 1;
  for (int interface = 0; interface < DOMAINS; interface++)
    for (int id = 0; id < MOST; id++)
      if (counts[interface][id] != 0)
        fprintf(file, "%s %s %lu\n", interfaces[interface], names[interface][id], counts[interface][id]);
  return fclose(file) != 0;
}
