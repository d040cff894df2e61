/* Takes messages from a consumer, as the binding's `Consumer.consume` does, with a third of its CPU time.
 *
 * The module is linked with neither librdkafka nor the binding: `bind` is called with the addresses of their functions.
 * Rebalance callbacks arrive in the same queue as records, and work only between the binding's `CallState_begin` and
 * `CallState_end`, so this module calls these two as `Consumer.consume` does. Events, which are rare, become the
 * binding's own messages.
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
} raw_message;

static struct {
    /* of the binding */
    int (*enter)(PyObject *consumer);
    void (*exit)(PyObject *consumer);
    void (*call_begin)(PyObject *consumer, void *state);
    int (*call_end)(PyObject *consumer, void *state);
    PyObject *(*event)(PyObject *consumer, const raw_message *);
    /* of librdkafka */
    void *(*opaque)(const void *client);
    void *(*consumer_queue)(void *client);
    void (*queue_destroy)(void *queue);
    Py_ssize_t (*consume_batch_queue)(void *queue, int timeout_ms, raw_message **messages, size_t count);
    void (*message_destroy)(raw_message *);
    int64_t (*message_timestamp)(const raw_message *, int *kind);
    int32_t (*message_leader_epoch)(const raw_message *);
    int (*detach_headers)(raw_message *, void **headers);
    void (*headers_destroy)(void *headers);
    int (*header)(const void *headers, size_t index, const char **name, const void **value, size_t *size);
    const char *(*topic_name)(const void *topic);
} kafka;

#define FUNCTIONS (sizeof kafka / sizeof(void *))
#define MOST_AT_ONCE 1000000 /* the limit of `Consumer.consume` */

static PyTypeObject *consumer_type;

/* A record. It has references only to strings, bytes and headers, so the garbage collector need not track it. */
typedef struct {
    PyObject_HEAD
    PyObject *topic;
    PyObject *key;       /* bytes or None */
    PyObject *value;     /* bytes or None */
    PyObject *headers;   /* a list or None; NULL while `raw_headers` have not been converted */
    void *raw_headers;   /* NULL if there are none, or if they have been converted */
    int64_t offset;
    int64_t timestamp;
    int32_t partition;
    int32_t leader_epoch; /* -1 if it is not known */
    int timestamp_kind;
} Message;

static void dealloc(Message *self)
{
    Py_XDECREF(self->topic);
    Py_XDECREF(self->key);
    Py_XDECREF(self->value);
    Py_XDECREF(self->headers);
    if (self->raw_headers)
        kafka.headers_destroy(self->raw_headers);
    PyObject_Free(self);
}

static PyObject *get_topic(Message *self, PyObject *Py_UNUSED(none)) { return Py_NewRef(self->topic); }
static PyObject *get_key(Message *self, PyObject *Py_UNUSED(none)) { return Py_NewRef(self->key); }
static PyObject *get_value(Message *self, PyObject *Py_UNUSED(none)) { return Py_NewRef(self->value); }
static PyObject *get_partition(Message *self, PyObject *Py_UNUSED(none)) { return PyLong_FromLong(self->partition); }
static PyObject *get_offset(Message *self, PyObject *Py_UNUSED(none)) { return PyLong_FromLongLong(self->offset); }

static PyObject *get_leader_epoch(Message *self, PyObject *Py_UNUSED(none))
{
    return self->leader_epoch < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(self->leader_epoch);
}

static PyObject *get_timestamp(Message *self, PyObject *Py_UNUSED(none))
{
    return Py_BuildValue("iL", self->timestamp_kind, (long long)self->timestamp);
}

static PyObject *bytes_or_none(const void *data, size_t size)
{
    return data ? PyBytes_FromStringAndSize(data, (Py_ssize_t)size) : Py_NewRef(Py_None);
}

/* Returns the headers as a list of pairs, or NULL with an exception. Headers whose names are not UTF-8 are left out, and
 * `left_out` is then set. */
static PyObject *pairs_of(const void *headers, int *left_out)
{
    const char *name;
    const void *value;
    size_t size;
    PyObject *pairs = PyList_New(0);
    for (size_t index = 0; pairs && !kafka.header(headers, index, &name, &value, &size); index++) {
        PyObject *text = PyUnicode_FromString(name);
        if (!text && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
            PyErr_Clear();
            *left_out = 1;
            continue;
        }
        PyObject *data = text ? bytes_or_none(value, size) : NULL;
        PyObject *pair = data ? PyTuple_Pack(2, text, data) : NULL;
        if (!pair || PyList_Append(pairs, pair))
            Py_CLEAR(pairs);
        Py_XDECREF(text);
        Py_XDECREF(data);
        Py_XDECREF(pair);
    }
    return pairs;
}

/* Returns the headers, or None. If the names of some are not UTF-8, the first call raises a SystemError as the binding
 * does, and later calls return the others. */
static PyObject *get_headers(Message *self, PyObject *Py_UNUSED(none))
{
    if (!self->headers && self->raw_headers) {
        int left_out = 0, collects = PyGC_Disable(); /* a finaliser could read the headers of this message, too */
        PyObject *pairs = pairs_of(self->raw_headers, &left_out);
        if (collects)
            PyGC_Enable();
        if (!pairs)
            return NULL;
        self->headers = pairs;
        kafka.headers_destroy(self->raw_headers);
        self->raw_headers = NULL;
        if (left_out) {
            PyErr_SetString(PyExc_SystemError, "The name of a header is not UTF-8.");
            return NULL;
        }
    }
    return Py_NewRef(self->headers ? self->headers : Py_None);
}

static PyObject *set_headers(Message *self, PyObject *headers)
{
    PyObject *before = self->headers;
    self->headers = Py_NewRef(headers);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

static int is_bytes_or_none(PyObject *field) { return field == Py_None || PyBytes_Check(field); }

/* Makes a message of the fields that `reduce` returns. */
static PyObject *new_message(PyTypeObject *type, PyObject *arguments, PyObject *Py_UNUSED(names))
{
    PyObject *topic, *key, *value, *headers;
    int partition, leader_epoch, timestamp_kind;
    long long offset, timestamp;
    if (!PyArg_ParseTuple(arguments, "UiLOOOiLi", &topic, &partition, &offset, &key, &value, &headers, &timestamp_kind,
                          &timestamp, &leader_epoch))
        return NULL;
    if (!is_bytes_or_none(key) || !is_bytes_or_none(value)) {
        PyErr_SetString(PyExc_TypeError, "The key and the value must be bytes or None.");
        return NULL;
    }
    Message *made = PyObject_New(Message, type);
    if (!made)
        return NULL;
    made->topic = Py_NewRef(topic);
    made->key = Py_NewRef(key);
    made->value = Py_NewRef(value);
    made->headers = Py_NewRef(headers);
    made->raw_headers = NULL;
    made->offset = offset;
    made->timestamp = timestamp;
    made->partition = partition;
    made->leader_epoch = leader_epoch;
    made->timestamp_kind = timestamp_kind;
    return (PyObject *)made;
}

/* Lets records be pickled and copied, as the binding's messages can be. */
static PyObject *reduce(Message *self, PyObject *none)
{
    PyObject *headers = get_headers(self, none);
    if (!headers)
        return NULL;
    return Py_BuildValue("O(OiLOONiLi)", Py_TYPE(self), self->topic, (int)self->partition, (long long)self->offset,
                         self->key, self->value, headers, self->timestamp_kind, (long long)self->timestamp,
                         (int)self->leader_epoch);
}

static PyMethodDef message_methods[] = {
    {"topic", (PyCFunction)get_topic, METH_NOARGS, "The name of the topic in Kafka."},
    {"partition", (PyCFunction)get_partition, METH_NOARGS, "The number of the partition."},
    {"offset", (PyCFunction)get_offset, METH_NOARGS, "The offset."},
    {"key", (PyCFunction)get_key, METH_NOARGS, "The bytes of the key, or None."},
    {"value", (PyCFunction)get_value, METH_NOARGS, "The bytes of the value, or None."},
    {"headers", (PyCFunction)get_headers, METH_NOARGS, "A list of names and values, or None."},
    {"set_headers", (PyCFunction)set_headers, METH_O, "Replace the headers."},
    {"timestamp", (PyCFunction)get_timestamp, METH_NOARGS, "The kind of the timestamp, and the milliseconds."},
    {"leader_epoch", (PyCFunction)get_leader_epoch, METH_NOARGS, "The leader epoch, or None."},
    {"__reduce__", (PyCFunction)reduce, METH_NOARGS, "Return what makes an equal message."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject message_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "headway.kafka.binding.native_messages.Message",
    .tp_basicsize = sizeof(Message),
    .tp_dealloc = (destructor)dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "A consumed record, with the methods of the binding's messages that records use.",
    .tp_methods = message_methods,
    .tp_new = new_message,
};

static PyObject *message_of(raw_message *from, PyObject *topic)
{
    Message *made = PyObject_New(Message, &message_type);
    if (!made)
        return NULL;
    made->topic = Py_NewRef(topic);
    made->headers = NULL;
    made->raw_headers = NULL;
    made->offset = from->offset;
    made->partition = from->partition;
    made->leader_epoch = kafka.message_leader_epoch(from);
    made->timestamp = kafka.message_timestamp(from, &made->timestamp_kind);
    made->key = bytes_or_none(from->key, from->key_len);
    made->value = bytes_or_none(from->payload, from->len);
    if (kafka.detach_headers(from, &made->raw_headers))
        made->raw_headers = NULL;
    if (!made->key || !made->value)
        Py_CLEAR(made);
    return (PyObject *)made;
}

/* Returns (records, events), or NULL with an exception. */
static PyObject *taken(PyObject *consumer, raw_message **messages, Py_ssize_t count)
{
    Py_ssize_t event_count = 0, of_records = 0, of_events = 0;
    for (Py_ssize_t index = 0; index < count; index++)
        event_count += messages[index]->err != 0;
    PyObject *records = PyList_New(count - event_count), *events = PyList_New(event_count);
    PyObject *topic = NULL; /* the name of the topic `named`, which consecutive records share */
    const void *named = NULL;
    for (Py_ssize_t index = 0; records && events && index < count; index++) {
        raw_message *each = messages[index];
        PyObject *item = NULL;
        if (each->err) {
            if ((item = kafka.event(consumer, each)))
                PyList_SET_ITEM(events, of_events++, item);
        } else {
            if (each->topic != named) {
                Py_XSETREF(topic, PyUnicode_FromString(kafka.topic_name(each->topic)));
                named = each->topic;
            }
            if (topic && (item = message_of(each, topic)))
                PyList_SET_ITEM(records, of_records++, item);
        }
        if (!item)
            Py_CLEAR(records);
    }
    Py_XDECREF(topic);
    if (!records || !events) {
        Py_XDECREF(records);
        Py_XDECREF(events);
        return NULL;
    }
    return Py_BuildValue("(NN)", records, events);
}

static PyObject *take(PyObject *Py_UNUSED(self), PyObject *arguments)
{
    PyObject *consumer;
    Py_ssize_t most, count;
    int timeout_ms;
    if (!PyArg_ParseTuple(arguments, "Oni", &consumer, &most, &timeout_ms))
        return NULL;
    if (!consumer_type || !PyObject_TypeCheck(consumer, consumer_type)) {
        PyErr_SetString(PyExc_TypeError, "bind was not called, or the first argument is not a consumer.");
        return NULL;
    }
    if (most < 0 || most > MOST_AT_ONCE) {
        PyErr_SetString(PyExc_ValueError, "The number of messages must be between 0 and 1000000.");
        return NULL;
    }
    raw_message **messages = PyMem_RawMalloc((size_t)most * sizeof(raw_message *));
    if (!messages)
        return PyErr_NoMemory();
    if (!kafka.enter(consumer)) { /* the consumer is closed, or a signal arrived during another thread's call */
        PyMem_RawFree(messages);
        return NULL;
    }
    PyObject *found = NULL;
    void *client = *(void **)((char *)consumer + sizeof(PyObject)); /* as in librdkafka.py */
    int is_client = kafka.opaque(client) == consumer;
    if (is_client) {
        void *state[16]; /* the binding's struct CallState has 3 fields */
        void *queue = kafka.consumer_queue(client);
        kafka.call_begin(consumer, state);
        count = kafka.consume_batch_queue(queue, timeout_ms, messages, (size_t)most);
        int is_good = kafka.call_end(consumer, state); /* 0 if a callback or a signal handler has raised */
        kafka.queue_destroy(queue);
        if (is_good)
            found = taken(consumer, messages, count < 0 ? 0 : count);
        for (Py_ssize_t index = 0; index < count; index++)
            kafka.message_destroy(messages[index]);
    }
    kafka.exit(consumer);
    PyMem_RawFree(messages);
    if (!is_client)
        PyErr_SetString(PyExc_RuntimeError, "The installed version of confluent-kafka has another memory layout.");
    return found;
}

static int is_same_partition(const Message *one, const Message *other)
{
    if (one->partition != other->partition)
        return 0;
    return one->topic == other->topic || PyUnicode_Compare(one->topic, other->topic) == 0;
}

/* Returns -1 with an exception if that failed. */
static int append_number(PyObject *list, Py_ssize_t number)
{
    PyObject *item = PyLong_FromSsize_t(number);
    int failed = !item || PyList_Append(list, item);
    Py_XDECREF(item);
    return failed ? -1 : 0;
}

/* Returns (offsets, sizes, ends, has_headers) of a list of this module's messages. Each size is that of the key and the
 * value, plus `overhead`. The ends are the indexes after the last message of each run of messages from one partition. */
static PyObject *columns(PyObject *Py_UNUSED(self), PyObject *arguments)
{
    PyObject *list;
    Py_ssize_t overhead;
    if (!PyArg_ParseTuple(arguments, "O!n", &PyList_Type, &list, &overhead))
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(list);
    PyObject *offsets = PyList_New(count), *sizes = PyList_New(count), *ends = PyList_New(0);
    const Message *before = NULL;
    Py_ssize_t index = 0;
    int has_headers = 0;
    for (; offsets && sizes && ends && index < count; index++) {
        PyObject *item = PyList_GET_ITEM(list, index);
        if (!Py_IS_TYPE(item, &message_type)) {
            PyErr_SetString(PyExc_TypeError, "An item is not a message of this module.");
            break;
        }
        const Message *message = (Message *)item;
        Py_ssize_t of_key = message->key == Py_None ? 0 : PyBytes_GET_SIZE(message->key);
        Py_ssize_t of_value = message->value == Py_None ? 0 : PyBytes_GET_SIZE(message->value);
        has_headers |= message->raw_headers || (message->headers && message->headers != Py_None);
        PyObject *offset = PyLong_FromLongLong(message->offset);
        PyObject *size = offset ? PyLong_FromSsize_t(overhead + of_key + of_value) : NULL;
        if (!size) {
            Py_XDECREF(offset);
            break;
        }
        PyList_SET_ITEM(offsets, index, offset);
        PyList_SET_ITEM(sizes, index, size);
        if (before && !is_same_partition(before, message) && append_number(ends, index))
            break;
        before = message;
    }
    if (!offsets || !sizes || !ends || index < count || (count && append_number(ends, count))) {
        Py_XDECREF(offsets);
        Py_XDECREF(sizes);
        Py_XDECREF(ends);
        return NULL;
    }
    return Py_BuildValue("(NNNN)", offsets, sizes, ends, PyBool_FromLong(has_headers));
}

static PyObject *bind(PyObject *Py_UNUSED(self), PyObject *arguments)
{
    PyObject *type, *addresses;
    void *functions[FUNCTIONS];
    if (!PyArg_ParseTuple(arguments, "O!O!", &PyType_Type, &type, &PyTuple_Type, &addresses))
        return NULL;
    if (PyTuple_GET_SIZE(addresses) != (Py_ssize_t)FUNCTIONS) {
        PyErr_Format(PyExc_ValueError, "There must be %zd addresses.", (Py_ssize_t)FUNCTIONS);
        return NULL;
    }
    for (size_t index = 0; index < FUNCTIONS; index++)
        if (!(functions[index] = PyLong_AsVoidPtr(PyTuple_GET_ITEM(addresses, (Py_ssize_t)index)))) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "An address is 0.");
            return NULL;
        }
    memcpy(&kafka, functions, sizeof kafka);
    Py_XSETREF(consumer_type, (PyTypeObject *)Py_NewRef(type));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"bind", bind, METH_VARARGS, "Set the type of consumers, and the addresses of the functions."},
    {"take", take, METH_VARARGS, "Take at most so many messages from a consumer: the records, and the events."},
    {"columns", columns, METH_VARARGS, "Return the offsets and sizes of messages, and the ends of runs of a partition."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "native_messages", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit_native_messages(void)
{
    PyObject *made = PyModule_Create(&module);
    if (made && PyModule_AddType(made, &message_type))
        Py_CLEAR(made);
    return made;
}
