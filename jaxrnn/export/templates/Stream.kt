// @LABEL@: a live stream on Android, in LiteRT's Interpreter.
//
// Add @STEP@ and state.bin to the assets, and implementation("com.google.ai.edge.litert:litert:VERSION") to the
// dependencies: 1.4, or 2.1 and newer. After an edit of the network, export again: this file has its names and sizes.
//
// A step with NaN or infinities gives zeros, and the stream begins anew: its next frames are those before the first.
//
//     val stream = LiveStream(assets)  // for one thread at a time
@INPUTS@//     stream.inputs["@NAME@"]!!.asFloatBuffer().put(given)  // @TYPE@ @SHAPE@
//     stream.push()
@OUTPUTS@//     stream.outputs["@NAME@"]!!.asFloatBuffer().get(result)  // @TYPE@ @SHAPE@
import android.content.res.AssetManager
import java.nio.ByteBuffer
import java.nio.ByteOrder
import org.tensorflow.lite.Interpreter

class LiveStream(assets: AssetManager) : AutoCloseable {
    private class State(val input: String, val output: String, val type: String, val offset: Int, val bytes: Int)

    private val state = listOf<State>(
@STATE@        State("@INPUT@", "@OUTPUT@", "@TYPE@", @OFFSET@, @BYTES@), // @SHAPE@
    )
    private val inputTypes = mapOf<String, String>(
@INPUTS@        "@NAME@" to "@TYPE@",
    )
    private val outputTypes = mapOf<String, String>(
@OUTPUTS@        "@NAME@" to "@TYPE@",
    )

    /** The arrays of a step, in native order. Fill them before [push]. */
    val inputs = mapOf<String, ByteBuffer>(
@INPUTS@        "@NAME@" to memory(@BYTES@), // @TYPE@ @SHAPE@
    )

    /** What the last step returned. The first frames of a stream, as many as the delay, precede the recording. */
    val outputs = mapOf<String, ByteBuffer>(
@OUTPUTS@        "@NAME@" to memory(@BYTES@), // @TYPE@ @SHAPE@, delay of @DELAY@ frame(s)
    )

    private val interpreter = Interpreter(contents(assets, "@STEP@"), Interpreter.Options().setNumThreads(1))
    private val first = contents(assets, "state.bin")
    private var before = state.map { memory(it.bytes) }
    private var after = state.map { memory(it.bytes) }
    private val ofStep = interpreter.getSignatureOutputs("step").toSet() // others need the signature "flush"

    // What is not finite before the first frame is not checked.
    private val checked = state.map { it.type == "float32" && isFinite(first, it.offset, it.bytes) }
    private val allChecked = state.zip(checked).all { (each, isChecked) -> isChecked || each.type != "float32" }

    /** The steps with NaN or infinities, whose outputs are zeros, and after which the stream began anew. */
    var resets = 0
        private set

    init {
        reset()
    }

    /** Begin a stream. */
    fun reset() {
        for ((each, buffer) in state.zip(before)) {
            val part = first.duplicate()
            part.position(each.offset)
            part.limit(each.offset + each.bytes)
            buffer.rewind()
            buffer.put(part)
        }
    }

    /** Run a step of @PULSE@ frame(s). */
    fun push() {
        val given = HashMap<String, Any>(inputs)
        val results = HashMap<String, Any>(outputs.filterKeys { it in ofStep })
        state.forEachIndexed { place, each ->
            given[each.input] = before[place]
            results[each.output] = after[place]
        }
        (inputs.values + outputs.values + before + after).forEach { it.rewind() }
        interpreter.runSignature(given, results, "step")
        before = after.also { after = before } // the new state is the next input, without a copy
        if (!stepIsFinite()) {
            outputs.filterKeys { it in ofStep }.values.forEach { buffer ->
                for (place in 0 until buffer.capacity()) buffer.put(place, 0)
            }
            reset()
            ++resets
        }
        (inputs.values + outputs.values).forEach { it.rewind() }
    }

    private fun stepIsFinite(): Boolean {
        fun all(buffers: Map<String, ByteBuffer>, types: Map<String, String>) =
            buffers.all { (name, buffer) -> types[name] != "float32" || isFinite(buffer, 0, buffer.capacity()) }
        val states = before.withIndex().all { (place, each) -> !checked[place] || isFinite(each, 0, each.capacity()) }
        return states && all(inputs, inputTypes) &&
            (!allChecked || all(outputs.filterKeys { it in ofStep }, outputTypes))
    }

    override fun close() = interpreter.close()
}

private fun isFinite(buffer: ByteBuffer, offset: Int, bytes: Int) =
    (offset until offset + bytes step 4).all { buffer.getFloat(it).isFinite() }

private fun memory(bytes: Int): ByteBuffer = ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder())

private fun contents(assets: AssetManager, name: String): ByteBuffer {
    val data = assets.open(name).use { it.readBytes() }
    val buffer = memory(data.size)
    buffer.put(data)
    buffer.rewind()
    return buffer
}
