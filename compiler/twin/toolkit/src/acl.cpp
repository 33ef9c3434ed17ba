// The ACL runtime on host memory. Signatures and error behaviour follow the public ACL documents: a kernel
// that fails while running makes its stream fail, and every later use of the stream reports it until the
// device is reset.
#include "acl/acl.h"

#include <algorithm>
#include <pthread.h>
#include <stdlib.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine_state.h"
#include "image.h"

#ifndef KAAS_TWIN_CANN_VERSION
#error "the installer names the CANN version that the twin stands for"
#endif

namespace {

using kaas_twin::Image;
using kaas_twin::KernelEntry;
using kaas_twin::KernelKind;

thread_local std::string t_message;   // of the last failing call of this thread
thread_local std::string t_returned;  // what aclGetRecentErrMsg handed out last
thread_local aclError t_last_error = ACL_SUCCESS;

aclError fail(aclError code, const std::string& text) {
  t_message = "[kaas CPU twin] " + text;
  t_last_error = code;
  return code;
}

struct Stream {
  aclError error = ACL_SUCCESS;
  std::string text;
};

struct Function {
  const KernelEntry* entry;
};

struct Binary {
  std::unique_ptr<Image> image;
  std::map<std::string, std::unique_ptr<Function>> functions;
};

struct Device {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  bool initialised = false;
  std::string soc = "Ascend950PR_9579";
  uint32_t cube_cores = 28;
  uint32_t vector_cores = 56;
  Stream default_stream;
  std::vector<Stream*> streams;
};

Device& device() {
  static auto* one = new Device;  // never destroyed: callers may outlive static destruction
  return *one;
}

class Locked {
 public:
  Locked() { pthread_mutex_lock(&device().mutex); }
  ~Locked() { pthread_mutex_unlock(&device().mutex); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
};

__attribute__((constructor)) void protect_fork() {
  pthread_atfork([] { pthread_mutex_lock(&device().mutex); }, [] { pthread_mutex_unlock(&device().mutex); },
                 [] { pthread_mutex_unlock(&device().mutex); });
}

// Of a handle that is_stream knows.
Stream& stream_of(aclrtStream handle) {
  return handle != nullptr ? *static_cast<Stream*>(handle) : device().default_stream;
}

bool is_stream(aclrtStream handle) {
  const auto& streams = device().streams;
  return handle == nullptr || std::find(streams.begin(), streams.end(), handle) != streams.end();
}

aclError stream_state(aclrtStream handle) {
  aclError code;
  std::string text;
  {
    Locked lock;
    if (is_stream(handle)) {
      const Stream& stream = stream_of(handle);
      code = stream.error;
      text = stream.text;
    } else {
      code = ACL_ERROR_INVALID_PARAM;
      text = "this is no stream of the device";
    }
  }
  return code == ACL_SUCCESS ? code : fail(code, text);
}

constexpr int64_t kGlobalMemoryBytes = int64_t{128} << 30;
constexpr int64_t kL2Bytes = int64_t{128} << 20;
constexpr int64_t kUsableUbBytes = 248 * 1024;  // 8 KiB of the 256 are the compiler's

}  // namespace

extern "C" {

aclError aclInit(const char*) {
  Locked lock;
  if (device().initialised) return fail(ACL_ERROR_REPEAT_INITIALIZE, "aclInit was called before");
  device().initialised = true;
  return ACL_SUCCESS;
}

aclError aclFinalize(void) {
  Locked lock;
  device().initialised = false;
  return ACL_SUCCESS;
}

const char* aclGetRecentErrMsg(void) {
  if (t_message.empty()) return nullptr;
  t_returned.swap(t_message);
  t_message.clear();
  return t_returned.c_str();
}

aclError aclsysGetCANNVersion(aclCANNPackageName, aclCANNPackageVersion* version) {
  if (version == nullptr)
    return fail(ACL_ERROR_INVALID_PARAM, "aclsysGetCANNVersion: no place for the version");
  std::memset(version, 0, sizeof(*version));
  std::snprintf(version->version, sizeof(version->version), "%s", KAAS_TWIN_CANN_VERSION);
  const std::string text = KAAS_TWIN_CANN_VERSION;
  char* const parts[] = {version->majorVersion, version->minorVersion, version->releaseVersion,
                         version->patchVersion};
  std::size_t from = 0;
  for (char* part : parts) {
    if (from > text.size()) break;
    const std::size_t to = std::min(text.find('.', from), text.size());
    std::snprintf(part, sizeof(version->majorVersion), "%s", text.substr(from, to - from).c_str());
    from = to + 1;
  }
  return ACL_SUCCESS;
}

aclError kaasTwinConfigureDevice(const char* soc, uint32_t cubeCores, uint32_t vectorCores) {
  if (soc == nullptr || soc[0] == '\0' || cubeCores == 0 || vectorCores == 0) {
    return fail(ACL_ERROR_INVALID_PARAM,
                "kaasTwinConfigureDevice: a SoC name and core counts above 0 are needed");
  }
  Locked lock;
  device().soc = soc;
  device().cube_cores = cubeCores;
  device().vector_cores = vectorCores;
  return ACL_SUCCESS;
}

aclError aclrtSetDevice(int32_t deviceId) {
  if (deviceId != 0) return fail(ACL_ERROR_RT_INVALID_DEVICEID, "aclrtSetDevice: the twin has device 0 only");
  return ACL_SUCCESS;
}

aclError aclrtResetDevice(int32_t deviceId) {
  if (deviceId != 0)
    return fail(ACL_ERROR_RT_INVALID_DEVICEID, "aclrtResetDevice: the twin has device 0 only");
  Locked lock;
  device().default_stream = Stream{};
  for (Stream* stream : device().streams) *stream = Stream{};
  return ACL_SUCCESS;
}

aclError aclrtGetDevice(int32_t* deviceId) {
  if (deviceId == nullptr)
    return fail(ACL_ERROR_INVALID_PARAM, "aclrtGetDevice: no place for the device number");
  *deviceId = 0;
  return ACL_SUCCESS;
}

aclError aclrtGetDeviceCount(uint32_t* count) {
  if (count == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "aclrtGetDeviceCount: no place for the count");
  *count = 1;
  return ACL_SUCCESS;
}

const char* aclrtGetSocName(void) {
  thread_local std::string name;
  Locked lock;
  name = device().soc;
  return name.c_str();
}

aclError aclrtGetDeviceInfo(uint32_t deviceId, aclrtDevAttr attr, int64_t* value) {
  if (deviceId != 0)
    return fail(ACL_ERROR_RT_INVALID_DEVICEID, "aclrtGetDeviceInfo: the twin has device 0 only");
  if (value == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "aclrtGetDeviceInfo: no place for the value");
  Locked lock;
  switch (attr) {
    case ACL_DEV_ATTR_AICPU_CORE_NUM: *value = 0; return ACL_SUCCESS;
    case ACL_DEV_ATTR_AICORE_CORE_NUM:
    case ACL_DEV_ATTR_CUBE_CORE_NUM: *value = device().cube_cores; return ACL_SUCCESS;
    case ACL_DEV_ATTR_VECTOR_CORE_NUM: *value = device().vector_cores; return ACL_SUCCESS;
    case ACL_DEV_ATTR_WARP_SIZE: *value = 32; return ACL_SUCCESS;
    case ACL_DEV_ATTR_MAX_THREAD_PER_VECTOR_CORE: *value = 2048; return ACL_SUCCESS;
    case ACL_DEV_ATTR_UBUF_PER_VECTOR_CORE: *value = kUsableUbBytes; return ACL_SUCCESS;
    case ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE: *value = kGlobalMemoryBytes; return ACL_SUCCESS;
    case ACL_DEV_ATTR_L2_CACHE_SIZE: *value = kL2Bytes; return ACL_SUCCESS;
    case ACL_DEV_ATTR_NPU_ARCH: *value = 3510; return ACL_SUCCESS;
  }
  return fail(ACL_ERROR_INVALID_PARAM,
              "aclrtGetDeviceInfo: the twin does not know attribute " + std::to_string(attr));
}

aclError aclrtGetLastError(aclrtLastErrLevel) {
  const aclError error = t_last_error;
  t_last_error = ACL_SUCCESS;
  return error;
}

aclError aclrtPeekAtLastError(aclrtLastErrLevel) { return t_last_error; }

aclError aclrtCreateStream(aclrtStream* stream) {
  if (stream == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "aclrtCreateStream: no place for the stream");
  auto* made = new Stream;
  Locked lock;
  device().streams.push_back(made);
  *stream = made;
  return ACL_SUCCESS;
}

aclError aclrtDestroyStream(aclrtStream stream) {
  Locked lock;
  auto& streams = device().streams;
  for (auto at = streams.begin(); at != streams.end(); ++at) {
    if (*at != stream) continue;
    delete *at;
    streams.erase(at);
    return ACL_SUCCESS;
  }
  return fail(ACL_ERROR_INVALID_PARAM, "aclrtDestroyStream: no such stream");
}

aclError aclrtSynchronizeStream(aclrtStream stream) { return stream_state(stream); }

aclError aclrtSynchronizeDevice(void) {
  std::vector<aclrtStream> streams = {nullptr};
  {
    Locked lock;
    streams.insert(streams.end(), device().streams.begin(), device().streams.end());
  }
  for (aclrtStream stream : streams) {
    const aclError error = stream_state(stream);
    if (error != ACL_SUCCESS) return error;
  }
  return ACL_SUCCESS;
}

aclError aclrtMalloc(void** devPtr, size_t size, aclrtMemMallocPolicy) {
  if (devPtr == nullptr || size == 0)
    return fail(ACL_ERROR_INVALID_PARAM, "aclrtMalloc: a place and a size above 0 are needed");
  if (posix_memalign(devPtr, 512, size) != 0) {
    return fail(ACL_ERROR_RT_MEMORY_ALLOCATION,
                "aclrtMalloc: the host has no " + std::to_string(size) + " bytes left");
  }
  return ACL_SUCCESS;
}

aclError aclrtFree(void* devPtr) {
  free(devPtr);
  return ACL_SUCCESS;
}

aclError aclrtMallocHost(void** hostPtr, size_t size) {
  return aclrtMalloc(hostPtr, size, ACL_MEM_MALLOC_HUGE_FIRST);
}
aclError aclrtFreeHost(void* hostPtr) { return aclrtFree(hostPtr); }

aclError aclrtMemcpy(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind) {
  if (count == 0) return ACL_SUCCESS;
  if (dst == nullptr || src == nullptr || count > destMax) {
    return fail(ACL_ERROR_INVALID_PARAM, "aclrtMemcpy: two places and count <= destMax are needed");
  }
  std::memmove(dst, src, count);
  return ACL_SUCCESS;
}

aclError aclrtMemcpyAsync(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind,
                          aclrtStream stream) {
  const aclError error = stream_state(stream);
  return error != ACL_SUCCESS ? error : aclrtMemcpy(dst, destMax, src, count, kind);
}

aclError aclrtMemset(void* devPtr, size_t maxCount, int32_t value, size_t count) {
  if (devPtr == nullptr || count > maxCount) {
    return fail(ACL_ERROR_INVALID_PARAM, "aclrtMemset: a place and count <= maxCount are needed");
  }
  std::memset(devPtr, value, count);
  return ACL_SUCCESS;
}

aclError aclrtBinaryLoadFromData(const void* data, size_t length, const aclrtBinaryLoadOptions*,
                                 aclrtBinHandle* binHandle) {
  if (data == nullptr || binHandle == nullptr)
    return fail(ACL_ERROR_INVALID_PARAM, "aclrtBinaryLoadFromData: no data");
  std::string error;
  auto binary = std::make_unique<Binary>();
  binary->image = Image::load(data, length, error);
  if (binary->image == nullptr) return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtBinaryLoadFromData: " + error);
  *binHandle = binary.release();
  return ACL_SUCCESS;
}

aclError aclrtBinaryLoadFromFile(const char* binPath, aclrtBinaryLoadOptions* options,
                                 aclrtBinHandle* binHandle) {
  if (binPath == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "aclrtBinaryLoadFromFile: no path");
  std::FILE* file = std::fopen(binPath, "rb");
  if (file == nullptr) {
    return fail(ACL_ERROR_INVALID_PARAM,
                std::string("aclrtBinaryLoadFromFile: ") + binPath + ": " + std::strerror(errno));
  }
  std::vector<unsigned char> bytes;
  unsigned char part[65536];
  for (std::size_t got = 0; (got = std::fread(part, 1, sizeof(part), file)) != 0;)
    bytes.insert(bytes.end(), part, part + got);
  const bool broken = std::ferror(file) != 0;
  std::fclose(file);
  if (broken)
    return fail(ACL_ERROR_INVALID_PARAM, std::string("aclrtBinaryLoadFromFile: cannot read ") + binPath);
  return aclrtBinaryLoadFromData(bytes.data() != nullptr ? bytes.data() : part, bytes.size(), options,
                                 binHandle);
}

aclError aclrtBinaryUnLoad(aclrtBinHandle binHandle) {
  if (binHandle == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "aclrtBinaryUnLoad: no binary");
  delete static_cast<Binary*>(binHandle);
  return ACL_SUCCESS;
}

aclError aclrtBinaryGetFunction(aclrtBinHandle binHandle, const char* kernelName,
                                aclrtFuncHandle* funcHandle) {
  if (binHandle == nullptr || kernelName == nullptr || funcHandle == nullptr) {
    return fail(ACL_ERROR_INVALID_PARAM, "aclrtBinaryGetFunction: a binary and a name are needed");
  }
  auto* binary = static_cast<Binary*>(binHandle);
  const KernelEntry* entry = binary->image->find(kernelName);
  if (entry == nullptr) {
    return fail(ACL_ERROR_RT_PARAM_INVALID, std::string("aclrtBinaryGetFunction: no kernel '") + kernelName +
                                                "' in the image; it has: " + binary->image->entry_names());
  }
  Locked lock;
  auto& slot = binary->functions[kernelName];
  if (slot == nullptr) slot = std::make_unique<Function>(Function{entry});
  *funcHandle = slot.get();
  return ACL_SUCCESS;
}

aclError aclrtLaunchKernelWithHostArgs(aclrtFuncHandle funcHandle, uint32_t numBlocks, aclrtStream stream,
                                       aclrtLaunchKernelCfg* cfg, void* hostArgs, size_t argsSize,
                                       aclrtPlaceHolderInfo*, size_t placeHolderNum) {
  if (funcHandle == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "launch: no function");
  const KernelEntry& entry = *static_cast<Function*>(funcHandle)->entry;
  const std::string name = entry.name;
  if (numBlocks == 0)
    return fail(ACL_ERROR_INVALID_PARAM, "launch of " + name + ": at least one block is needed");
  if (placeHolderNum != 0)
    return fail(ACL_ERROR_FEATURE_UNSUPPORTED, "launch of " + name + ": the twin has no place holders");
  if (argsSize != entry.argument_bytes || (hostArgs == nullptr && argsSize != 0)) {
    return fail(ACL_ERROR_INVALID_PARAM, "launch of " + name + ": the arguments take " +
                                             std::to_string(entry.argument_bytes) + " bytes, given are " +
                                             std::to_string(argsSize));
  }
  const aclError before = stream_state(stream);
  if (before != ACL_SUCCESS) return before;

  kaas_twin::LaunchPlan plan;
  plan.kernel = &entry;
  plan.arguments = static_cast<const unsigned char*>(hostArgs);
  plan.blocks = numBlocks;
  for (size_t i = 0; cfg != nullptr && i < cfg->numAttrs; ++i) {
    if (cfg->attrs[i].id == ACL_RT_LAUNCH_KERNEL_ATTR_DYN_UBUF_SIZE)
      plan.dynamic_ub_bytes = cfg->attrs[i].value.dynUBufSize;
  }
  if (plan.dynamic_ub_bytes > kaas_twin::kUbBytes) {
    return fail(ACL_ERROR_INVALID_PARAM, "launch of " + name + ": " + std::to_string(plan.dynamic_ub_bytes) +
                                             " bytes of dynamic UB exceed its " +
                                             std::to_string(kaas_twin::kUbBytes));
  }
  const char* schedule = std::getenv("KAAS_TWIN_SCHEDULE");
  if (schedule != nullptr && std::strcmp(schedule, "happens-before") == 0) {
    if (entry.reports_accesses == 0) {
      return fail(ACL_ERROR_INVALID_PARAM,
                  "launch of " + name +
                      ": the happens-before check needs an image that reports its loads and stores; compile it "
                      "with KAAS_TWIN_REPORT_ACCESSES=1 in the environment of bisheng");
    }
    plan.schedule = kaas_twin::Schedule::kHappensBefore;
  } else if (schedule != nullptr && schedule[0] != '\0' && std::strcmp(schedule, "eager") != 0) {
    if (std::strcmp(schedule, "adversarial") != 0) {
      return fail(ACL_ERROR_INVALID_PARAM,
                  std::string("KAAS_TWIN_SCHEDULE is eager, adversarial or happens-before, not '") + schedule + "'");
    }
    plan.schedule = kaas_twin::Schedule::kAdversarial;
  }
  if (const char* seed = std::getenv("KAAS_TWIN_SEED")) plan.seed = std::strtoull(seed, nullptr, 10);
  if (entry.crosses_blocks != 0) {
    Locked lock;
    const uint32_t cores = entry.kind == KernelKind::kVector ? device().vector_cores : device().cube_cores;
    if (numBlocks > cores) {
      return fail(ACL_ERROR_INVALID_PARAM, "launch of " + name + ": its blocks wait for each other, so " +
                                               std::to_string(numBlocks) + " blocks need as many cores; " +
                                               device().soc + " has " + std::to_string(cores));
    }
  }

  const std::string text = kaas_twin::run_launch(plan);
  if (text.empty()) return ACL_SUCCESS;
  // The launch itself is accepted, as on a device; the failure shows at the next synchronisation.
  Locked lock;
  Stream& failed = stream_of(stream);
  failed.error = ACL_ERROR_RT_AICORE_EXCEPTION;
  failed.text = "kernel " + name + ": " + text;
  return ACL_SUCCESS;
}

}  // extern "C"
