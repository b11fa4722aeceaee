#!/usr/bin/env python3
"""Writes optimizer_vectors.h: the results of TensorFlow's own 1.x optimizers over 100 steps, for
tests/ps/store/test_optimizer.c.

Needs TensorFlow (any version with tf.compat.v1 and resource variables; made with 2.15), which `make test` does not: run
it by `make vectors` in an environment that has it. The problem is two variables, weights [3, 4] and biases [4], with
gradients that both sides compute from integers (see gradient() here and in the test); row 1 of the weights gets its
first gradient at step 40 and no other, like a pixel that hardly any image has.
"""
import os
import sys
import textwrap

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.enable_resource_variables()
tf.logging.set_verbosity(tf.logging.ERROR)

STEPS = 100
SHOWN = (1, 10, 100)
ROWS, COLS = 3, 4
WEIGHTS = ROWS * COLS

# name, optimizer kind, settings
CASES = [
    ("sgd", "SGD", {}),
    ("sgd_decay_l2_ema", "SGD", dict(learning_rate=0.8, lr_decay=0.99, lr_decay_steps=7, l2=1e-2, ema_decay=0.99)),
    ("sgd_staircase", "SGD", dict(learning_rate=0.5, lr_decay=0.9, lr_decay_steps=7, lr_staircase=True)),
    ("momentum", "MOMENTUM", dict(learning_rate=0.05, momentum=0.9)),
    ("momentum_l2_ema", "MOMENTUM", dict(learning_rate=0.05, momentum=0.9, l2=1e-2, ema_decay=0.95)),
    ("nesterov", "MOMENTUM", dict(learning_rate=0.05, momentum=0.9, nesterov=True)),
    ("nesterov_l2", "MOMENTUM", dict(learning_rate=0.05, momentum=0.8, nesterov=True, l2=1e-2)),
    ("adagrad", "ADAGRAD", dict(learning_rate=0.05, adagrad_init=0.1)),
    ("adagrad_decay_l2_ema", "ADAGRAD",
     dict(learning_rate=0.1, adagrad_init=0.01, lr_decay=0.97, lr_decay_steps=10, l2=1e-2, ema_decay=0.9)),
    ("adadelta", "ADADELTA", dict(learning_rate=1.0, rho=0.95, epsilon=1e-6)),
    ("adadelta_l2_ema", "ADADELTA", dict(learning_rate=0.7, rho=0.9, epsilon=1e-5, l2=1e-2, ema_decay=0.9)),
    ("adam", "ADAM", dict(learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8)),
    ("adam_decay_l2_ema", "ADAM",
     dict(learning_rate=0.01, beta1=0.8, beta2=0.99, epsilon=1e-4, lr_decay=0.9, lr_decay_steps=20, l2=1e-2,
          ema_decay=0.9)),
    ("rmsprop", "RMSPROP", dict(learning_rate=0.001, rmsprop_decay=0.9, epsilon=1e-8)),
    ("rmsprop_momentum_l2_ema", "RMSPROP",
     dict(learning_rate=0.01, rmsprop_decay=0.8, rmsprop_momentum=0.9, epsilon=1e-4, l2=1e-2, ema_decay=0.9)),
    ("ftrl", "FTRL", dict(learning_rate=0.05, adagrad_init=0.1)),
    ("ftrl_l1_l2_ema", "FTRL", dict(learning_rate=0.2, adagrad_init=0.5, l1=0.3, l2=1e-2, ema_decay=0.9)),
    ("cosine", "SGD", dict(learning_rate=0.5, lr_cosine_steps=70, lr_cosine_end=0.1)),
]
DEFAULTS = dict(learning_rate=0.5, lr_decay=1.0, lr_decay_steps=1, lr_staircase=False, momentum=0.9, nesterov=False,
                adagrad_init=0.1, rho=0.95, beta1=0.9, beta2=0.999, epsilon=1e-8, l2=0.0, ema_decay=0.0,
                rmsprop_decay=0.9, rmsprop_momentum=0.0, l1=0.0, lr_cosine_steps=0, lr_cosine_end=0.0)


def gradient(step, i):
    """Of element i at step 0, 1, ...: a multiple of 1/1024 in [-1, 1]; the weights come first, then the biases."""
    if i < WEIGHTS and i // COLS == 1 and step != 40:
        return 0.0
    mixed = ((step * 131 + i * 31337 + 7) * 2654435761) % 2**32
    return ((mixed >> 8) % 2049 - 1024) / 1024.0


def start(i):
    return ((i * 37) % 41 - 20) / 64.0


def optimizer(kind, settings, rate):
    if kind == "SGD":
        return tf.train.GradientDescentOptimizer(rate)
    if kind == "MOMENTUM":
        return tf.train.MomentumOptimizer(rate, settings["momentum"], use_nesterov=settings["nesterov"])
    if kind == "ADAGRAD":
        return tf.train.AdagradOptimizer(rate, initial_accumulator_value=settings["adagrad_init"])
    if kind == "ADADELTA":
        return tf.train.AdadeltaOptimizer(rate, rho=settings["rho"], epsilon=settings["epsilon"])
    if kind == "RMSPROP":
        return tf.train.RMSPropOptimizer(rate, decay=settings["rmsprop_decay"], momentum=settings["rmsprop_momentum"],
                                         epsilon=settings["epsilon"])
    if kind == "FTRL":
        return tf.train.FtrlOptimizer(rate, initial_accumulator_value=settings["adagrad_init"],
                                      l1_regularization_strength=settings["l1"])
    return tf.train.AdamOptimizer(rate, beta1=settings["beta1"], beta2=settings["beta2"], epsilon=settings["epsilon"])


def run(kind, settings):
    """{step: [parameters, slot 0, slot 1, averages]}, and the names TensorFlow gives to what it adds to a variable."""
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        w = tf.get_variable("w", initializer=np.float32([start(i) for i in range(WEIGHTS)]).reshape(ROWS, COLS))
        b = tf.get_variable("b", initializer=np.float32([start(i) for i in range(WEIGHTS, WEIGHTS + COLS)]))
        grad_w, grad_b = tf.placeholder(tf.float32, [ROWS, COLS]), tf.placeholder(tf.float32, [COLS])
        loss = tf.reduce_sum(w * grad_w) + tf.reduce_sum(b * grad_b)
        if settings["l2"]:
            loss += np.float32(settings["l2"]) * tf.nn.l2_loss(w)
        rate = settings["learning_rate"]
        if settings["lr_decay"] != 1.0:
            rate = tf.train.exponential_decay(rate, step, settings["lr_decay_steps"], settings["lr_decay"],
                                              staircase=settings["lr_staircase"])
        if settings["lr_cosine_steps"]:
            rate = tf.train.cosine_decay(rate, step, settings["lr_cosine_steps"], alpha=settings["lr_cosine_end"])
        chosen = optimizer(kind, settings, rate)
        train = chosen.minimize(loss, global_step=step)
        slots = [[chosen.get_slot(v, name) for v in (w, b)] for name in chosen.get_slot_names()]
        averages = None
        if settings["ema_decay"]:
            ema = tf.train.ExponentialMovingAverage(settings["ema_decay"], step)
            with tf.control_dependencies([train]):
                train = ema.apply([w, b])
            averages = [ema.average(w), ema.average(b)]
        order = {"m": 0, "v": 1, "accum": 0, "accum_update": 1, "rms": 0, "momentum": 1, "linear": 1}
        slots = [pair for _, pair in sorted(zip(chosen.get_slot_names(), slots), key=lambda s: order.get(s[0], 0))]
        vectors = [[w, b]] + (slots + [None, None])[:2] + [averages]
        names = [pair and pair[0].op.name[len("w/"):] for pair in vectors[1:]]
        session.run(tf.global_variables_initializer())
        shown = {}
        for n in range(STEPS):
            values = np.float32([gradient(n, i) for i in range(WEIGHTS + COLS)])
            session.run(train, {grad_w: values[:WEIGHTS].reshape(ROWS, COLS), grad_b: values[WEIGHTS:]})
            if n + 1 in SHOWN:
                shown[n + 1] = [pair and np.concatenate([v.ravel() for v in session.run(pair)]) for pair in vectors]
        return shown, names


def c_value(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)


def c_vector(values):
    if values is None:
        return "{0}"
    return "{" + ", ".join("%.9g" % v for v in values) + "}"


def entry(text):
    """In as few lines as it takes: nobody reads them."""
    return textwrap.wrap(text, 120, initial_indent=" " * 4, subsequent_indent=" " * 5, break_long_words=False,
                         break_on_hyphens=False)


def main():
    out = []
    out.append("/* Made by tests/vectors/make_vectors.py with TensorFlow %s; not to be edited. */" % tf.__version__)
    out.append("#ifndef TESTS_VECTORS_OPTIMIZER_VECTORS_H\n#define TESTS_VECTORS_OPTIMIZER_VECTORS_H\n")
    out.append('#include "base/config.h"\n')
    out.append("enum { VECTOR_ROWS = %d, VECTOR_COLS = %d, VECTOR_FLOATS = %d, VECTOR_SHOWN = %d };\n"
               % (ROWS, COLS, WEIGHTS + COLS, len(SHOWN)))
    out.append("struct optimizer_vector {\n"
               "    const char *name;\n"
               "    struct config_train config;\n"
               "    const char *names[3]; /* what TensorFlow appends to a variable's name: two slots, the average */\n"
               "    struct {\n"
               "        int steps;\n"
               "        double values[4][VECTOR_FLOATS]; /* parameters, two slots, averages; weights, then biases */\n"
               "    } shown[VECTOR_SHOWN];\n"
               "};\n")
    out.append("/* clang-format off */\nstatic const struct optimizer_vector optimizer_vectors[] = {")
    for name, kind, own in CASES:
        settings = dict(DEFAULTS, **own)
        shown, names = run(kind, settings)
        config = [".optimizer = OPTIMIZER_%s" % kind]
        config += [".%s = %s" % (key, c_value(value)) for key, value in settings.items() if value]
        out += entry("{.name = \"%s\", .config = {%s}, .names = {%s}, .shown = {%s}}," % (
            name, ", ".join(config), ", ".join('"%s"' % n if n else "NULL" for n in names),
            ", ".join("{%d, {%s}}" % (steps, ", ".join(c_vector(v) for v in shown[steps])) for steps in SHOWN)))
    out.append("};\n\n#endif")
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "optimizer_vectors.h")
    with open(path, "w") as file:
        file.write("\n".join(out) + "\n")
    print("wrote", path, file=sys.stderr)


if __name__ == "__main__":
    main()
