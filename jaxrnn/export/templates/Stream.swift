// @LABEL@: a live stream on iOS and macOS, in TensorFlowLiteSwift, which runs LiteRT files.
//
// Add @STEP@ and state.bin to the resources of the app. After an edit of the network, export again: this file has its
// names and sizes.
//
// A step with NaN or infinities gives zeros, and the stream begins anew: its next frames are those before the first.
//
//     let stream = try LiveStream()  // for one thread at a time
//     let outputs = try stream.push([
@INPUTS@//         "@NAME@": given.withUnsafeBytes { Data($0) },  // @TYPE@ @SHAPE@
//     ])
@OUTPUTS@//     outputs["@NAME@"]!.withUnsafeBytes { Array($0.bindMemory(to: Float32.self)) }  // @TYPE@ @SHAPE@
import Foundation
import TensorFlowLite

final class LiveStream {
    private static let carried: [(input: String, output: String, type: String, offset: Int, bytes: Int)] = [
@STATE@        ("@INPUT@", "@OUTPUT@", "@TYPE@", @OFFSET@, @BYTES@),  // @SHAPE@
    ]
    private static let inputTypes: [String: String] = [
@INPUTS@        "@NAME@": "@TYPE@",
    ]
    private static let outputTypes: [String: String] = [
@OUTPUTS@        "@NAME@": "@TYPE@",
    ]

    /// The bytes of the arrays that `push` takes.
    static let inputs: [String: Int] = [
@INPUTS@        "@NAME@": @BYTES@,  // @TYPE@ @SHAPE@
    ]

    /// The bytes of the arrays of a step. The first frames of a stream, as many as the delay, precede the recording.
    static let outputs: [String: Int] = [
@OUTPUTS@        "@NAME@": @BYTES@,  // @TYPE@ @SHAPE@, delay of @DELAY@ frame(s)
    ]

    private let step: SignatureRunner
    private let first: Data
    private var state: [String: Data] = [:]
    private var checked: Set<String> = []
    private var allChecked = true

    /// The steps with NaN or infinities, whose outputs are zeros, and after which the stream began anew.
    private(set) var resets = 0

    init(bundle: Bundle = .main) throws {
        guard let model = bundle.path(forResource: "@STEP@", ofType: nil),
            let start = bundle.url(forResource: "state.bin", withExtension: nil)
        else { throw CocoaError(.fileNoSuchFile) }
        var options = Interpreter.Options()
        options.threadCount = 1
        step = try Interpreter(modelPath: model, options: options).signatureRunner(with: "step")
        first = try Data(contentsOf: start)
        reset()
        for each in Self.carried where each.type == "float32" {  // what is not finite at first is not checked
            if Self.isFinite(state[each.input]!) { checked.insert(each.input) } else { allChecked = false }
        }
    }

    /// Begin a stream.
    func reset() {
        for each in Self.carried {
            state[each.input] = first.subdata(in: each.offset..<(each.offset + each.bytes))
        }
    }

    /// Run a step of @PULSE@ frame(s), and return the outputs of the step; others need the signature "flush".
    func push(_ inputs: [String: Data]) throws -> [String: Data] {
        try step.invoke(with: inputs.merging(state) { given, _ in given })
        for each in Self.carried { state[each.input] = try step.output(named: each.output).data }
        var results: [String: Data] = [:]
        for name in step.outputs where Self.outputs[name] != nil {
            results[name] = try step.output(named: name).data
        }
        let outputs = allChecked ? results : [:]
        let isFinite =
            checked.allSatisfy { Self.isFinite(state[$0]!) }
            && inputs.allSatisfy { Self.inputTypes[$0.key] != "float32" || Self.isFinite($0.value) }
            && outputs.allSatisfy { Self.outputTypes[$0.key] != "float32" || Self.isFinite($0.value) }
        if !isFinite {
            results = results.mapValues { Data(count: $0.count) }
            reset()
            resets += 1
        }
        return results
    }

    private static func isFinite(_ data: Data) -> Bool {
        data.withUnsafeBytes { $0.bindMemory(to: Float32.self).allSatisfy { $0.isFinite } }
    }
}
