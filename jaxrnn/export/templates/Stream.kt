// @LABEL@: a live stream on Android, in LiteRT's Interpreter.
//
// Add @STEP@ and state.bin to the assets, and implementation("com.google.ai.edge.litert:litert:VERSION") to the
// dependencies: 1.4, or 2.1 and newer. After an edit of the network, export again: this file has its names and sizes.
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
    private class State(val input: String, val output: String, val offset: Int, val bytes: Int)

    private val state = listOf<State>(
@STATE@        State("@INPUT@", "@OUTPUT@", @OFFSET@, @BYTES@), // @TYPE@ @SHAPE@
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
        (inputs.values + outputs.values).forEach { it.rewind() }
    }

    override fun close() = interpreter.close()
}

private fun memory(bytes: Int): ByteBuffer = ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder())

private fun contents(assets: AssetManager, name: String): ByteBuffer {
    val data = assets.open(name).use { it.readBytes() }
    val buffer = memory(data.size)
    buffer.put(data)
    buffer.rewind()
    return buffer
}
