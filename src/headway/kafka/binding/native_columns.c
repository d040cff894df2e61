/* Takes records from a queue of librdkafka, and copies them into the buffers of Arrow columns.
 *
 * The module is not linked with librdkafka: `bind` is called with the addresses of librdkafka's functions, from the
 * library that the Python binding ships. A queue may only be taken from here if no event of its client that has a
 * callback arrives in it, because the binding's callbacks work only inside the binding's own calls.
 *
 * Each buffer is a bytes object, so whoever wraps it as an Arrow buffer owns its memory. The GIL is released while the
 * queue is waited for, and while records are copied and freed.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* The struct rd_kafka_message_t, which is part of librdkafka's stable interface. */
typedef struct {
    int err;
    void *topic;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *private_;
} message;

static struct {
    Py_ssize_t (*consume_batch_queue)(void *queue, int timeout_ms, message **messages, size_t count);
    void (*message_destroy)(message *);
    int64_t (*message_timestamp)(const message *, int *kind);
    const char *(*message_errstr)(const message *);
    const char *(*topic_name)(const void *topic);
} kafka;

/* The most bytes of the keys or values of a run with more than one record. This is half of what the 32-bit offsets of
 * an Arrow column of type `binary` can express, so that a run can be joined with smaller ones. The tests set less. */
#ifndef MOST_BYTES
#define MOST_BYTES ((size_t)INT32_MAX / 2)
#endif

static const void *field(const message *from, int of_key, size_t *length)
{
    *length = of_key ? from->key_len : from->len;
    return of_key ? from->key : from->payload;
}

/* Returns the index after the last record of the run that begins with the record `first`. A single record always fits
 * into a column, because Kafka expresses the length of a field as a signed 32-bit integer, too. */
static Py_ssize_t run_end(message **messages, Py_ssize_t first, Py_ssize_t count)
{
    const message *begin = messages[first];
    size_t keys = begin->key_len, values = begin->len;
    Py_ssize_t index;
    for (index = first + 1; index < count && keys <= MOST_BYTES && values <= MOST_BYTES; index++) {
        const message *each = messages[index];
        if (each->err || each->topic != begin->topic || each->partition != begin->partition)
            break;
        if (each->key_len > MOST_BYTES - keys || each->len > MOST_BYTES - values)
            break;
        keys += each->key_len;
        values += each->len;
    }
    return index;
}

/* Copies the keys or values of records. `offsets` has space for one more than `count` integers, `data` for the sum of
 * the lengths, and `validity`, which is NULL if no key or value is null, for one bit for each record. */
static void copy_field(message **messages, Py_ssize_t count, int of_key, int32_t *offsets, uint8_t *validity, char *data)
{
    int32_t end = 0;
    offsets[0] = 0;
    for (Py_ssize_t index = 0; index < count; index++) {
        size_t length;
        const void *from = field(messages[index], of_key, &length);
        if (from) {
            memcpy(data + end, from, length);
            end += (int32_t)length;
            if (validity)
                validity[index / 8] |= (uint8_t)(1 << index % 8);
        }
        offsets[index + 1] = end;
    }
}

/* Returns (offsets, validity or None, data), or NULL with an exception. */
static PyObject *column(message **messages, Py_ssize_t count, int of_key)
{
    size_t size = 0;
    int has_null = 0;
    for (Py_ssize_t index = 0; index < count; index++) {
        size_t length;
        if (field(messages[index], of_key, &length))
            size += length;
        else
            has_null = 1;
    }
    PyObject *offsets = PyBytes_FromStringAndSize(NULL, (count + 1) * (Py_ssize_t)sizeof(int32_t));
    PyObject *validity = has_null ? PyBytes_FromStringAndSize(NULL, (count + 7) / 8) : Py_NewRef(Py_None);
    PyObject *data = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (!offsets || !validity || !data) {
        Py_XDECREF(offsets);
        Py_XDECREF(validity);
        Py_XDECREF(data);
        return NULL;
    }
    int32_t *to_offsets = (int32_t *)PyBytes_AsString(offsets);
    uint8_t *to_validity = has_null ? (uint8_t *)PyBytes_AsString(validity) : NULL;
    char *to_data = PyBytes_AsString(data);
    Py_BEGIN_ALLOW_THREADS
    if (to_validity)
        memset(to_validity, 0, (size_t)(count + 7) / 8);
    copy_field(messages, count, of_key, to_offsets, to_validity, to_data);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("(NNN)", offsets, validity, data);
}

/* Returns (topic, partition, count, key, value, offsets, timestamps, kinds of timestamps), or NULL with an exception. */
static PyObject *run(message **messages, Py_ssize_t count)
{
    PyObject *key = column(messages, count, 1);
    PyObject *value = key ? column(messages, count, 0) : NULL;
    PyObject *offsets = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int64_t));
    PyObject *timestamps = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int64_t));
    PyObject *kinds = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int32_t));
    if (!value || !offsets || !timestamps || !kinds) {
        Py_XDECREF(key);
        Py_XDECREF(value);
        Py_XDECREF(offsets);
        Py_XDECREF(timestamps);
        Py_XDECREF(kinds);
        return NULL;
    }
    int64_t *to_offsets = (int64_t *)PyBytes_AsString(offsets), *to_times = (int64_t *)PyBytes_AsString(timestamps);
    int32_t *to_kinds = (int32_t *)PyBytes_AsString(kinds);
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t index = 0; index < count; index++) {
        int kind;
        to_offsets[index] = messages[index]->offset;
        to_times[index] = kafka.message_timestamp(messages[index], &kind);
        to_kinds[index] = kind - 1; /* Kafka's numbers for the kinds of timestamps are one lower than librdkafka's */
    }
    Py_END_ALLOW_THREADS
    const char *topic = kafka.topic_name(messages[0]->topic);
    return Py_BuildValue("(siNNNNNN)", topic, (int)messages[0]->partition, PyLong_FromSsize_t(count), key, value, offsets,
                         timestamps, kinds);
}

/* Returns (topic or None, partition, offset, error code, reason), or NULL with an exception. */
static PyObject *event(const message *from)
{
    const char *reason = kafka.message_errstr(from);
    PyObject *text = PyUnicode_DecodeUTF8(reason, (Py_ssize_t)strlen(reason), "replace");
    if (!text)
        return NULL;
    return Py_BuildValue("(ziLiN)", from->topic ? kafka.topic_name(from->topic) : NULL, (int)from->partition,
                         (long long)from->offset, from->err, text);
}

static PyObject *taken(message **messages, Py_ssize_t count)
{
    PyObject *found = PyList_New(0);
    for (Py_ssize_t first = 0, end; found && first < count; first = end) {
        end = messages[first]->err ? first + 1 : run_end(messages, first, count);
        PyObject *item = messages[first]->err ? event(messages[first]) : run(messages + first, end - first);
        if (!item || PyList_Append(found, item))
            Py_CLEAR(found);
        Py_XDECREF(item);
    }
    return found;
}

static PyObject *take(PyObject *Py_UNUSED(self), PyObject *arguments)
{
    PyObject *address;
    Py_ssize_t most;
    int timeout_ms;
    if (!PyArg_ParseTuple(arguments, "Oni", &address, &most, &timeout_ms))
        return NULL;
    void *queue = PyLong_AsVoidPtr(address);
    if (!queue) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "The queue's address is 0.");
        return NULL;
    }
    if (!kafka.consume_batch_queue || most < 1 || most > PY_SSIZE_T_MAX / (Py_ssize_t)sizeof(message *)) {
        PyErr_SetString(PyExc_ValueError, "bind was not called, or the number of records is below 1 or too large.");
        return NULL;
    }
    message **messages = PyMem_RawMalloc((size_t)most * sizeof(message *));
    if (!messages)
        return PyErr_NoMemory();
    Py_ssize_t count;
    Py_BEGIN_ALLOW_THREADS
    count = kafka.consume_batch_queue(queue, timeout_ms, messages, (size_t)most);
    Py_END_ALLOW_THREADS
    PyObject *found = taken(messages, count); /* if librdkafka fails, `count` is -1, and the list is empty */
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t index = 0; index < count; index++)
        kafka.message_destroy(messages[index]);
    Py_END_ALLOW_THREADS
    PyMem_RawFree(messages);
    return found;
}

static PyObject *bind(PyObject *Py_UNUSED(self), PyObject *arguments)
{
    PyObject *addresses[5];
    void *functions[5];
    if (!PyArg_ParseTuple(arguments, "OOOOO", &addresses[0], &addresses[1], &addresses[2], &addresses[3], &addresses[4]))
        return NULL;
    for (int index = 0; index < 5; index++)
        if (!(functions[index] = PyLong_AsVoidPtr(addresses[index])) && PyErr_Occurred())
            return NULL;
    memcpy(&kafka, functions, sizeof kafka);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"bind", bind, METH_VARARGS, "Set the addresses of librdkafka's functions."},
    {"take", take, METH_VARARGS, "Take at most so many records and events from the queue at this address."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "native_columns", .m_size = 0, .m_methods = methods};

PyMODINIT_FUNC PyInit_native_columns(void)
{
    return PyModuleDef_Init(&module);
}
