// Compiled with -include tests/cuda/fake/words.h, as the kernels are.
#include "tests/cuda/fake/kernels.h"

#include <utility>

#include "cuda/kernels/kernels.cu"

namespace
{

template <auto kernel> struct caller;

template <class... Arguments, void (*kernel)(Arguments...)> struct caller<kernel> {
    template <size_t... i> static void unpack(void **arguments, std::index_sequence<i...>)
    {
        kernel(*static_cast<const Arguments *>(arguments[i])...);
    }
    static void call(void **arguments)
    {
        unpack(arguments, std::index_sequence_for<Arguments...>{});
    }
    static fake_kernel entry(const char *name)
    {
        return {name, call, {sizeof(Arguments)...}};
    }
};

} // namespace

#define ENTRY(name) caller<name>::entry(#name)

std::vector<fake_kernel> &fake_kernels()
{
    static std::vector<fake_kernel> kernels = {
        ENTRY(draw),
        ENTRY(spread),
        ENTRY(loss),
        ENTRY(measure),
        ENTRY(apply),
        ENTRY(forward_small),
        ENTRY(forward_medium),
        ENTRY(forward_large),
        ENTRY(delta_small),
        ENTRY(delta_medium),
        ENTRY(delta_large),
        ENTRY(gradient_small),
        ENTRY(gradient_medium),
        ENTRY(gradient_large),
        ENTRY(forward_tensor),
        ENTRY(delta_tensor),
        ENTRY(gradient_tensor),
        ENTRY(train_sharded_4),
        ENTRY(train_sharded_8),
    };
    return kernels;
}
