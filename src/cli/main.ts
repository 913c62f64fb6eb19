#!/usr/bin/env node
/** The command line: finds the command and shows what went wrong in one line. Each command is a file of its own. */
import { type Command, EXIT_FAILED, EXIT_MISUSE, isForPeople, Misuse } from './command.ts'
import { version } from './version.ts'

/** Loaded when asked for: no command pays for what another one needs. */
const COMMANDS: Readonly<Record<string, () => Promise<Command>>> = {
  audit: async () => (await import('./audit.ts')).audit,
  check: async () => (await import('./check.ts')).check,
  config: async () => (await import('./config.ts')).config,
  demo: async () => (await import('./demo.ts')).demo,
  doctor: async () => (await import('./doctor.ts')).doctor,
  gate: async () => (await import('./gate.ts')).gate,
  list: async () => (await import('./list.ts')).list,
  show: async () => (await import('./show.ts')).show,
  release: async () => (await import('./release.ts')).release,
  forget: async () => (await import('./forget.ts')).forget,
  sweep: async () => (await import('./sweep.ts')).sweep,
  stats: async () => (await import('./stats.ts')).stats,
  tail: async () => (await import('./tail.ts')).tail,
  migrate: async () => (await import('./migrate.ts')).migrate,
}

async function help(): Promise<string> {
  const commands = await Promise.all(Object.values(COMMANDS).map((load) => load()))
  return `oncekey COMMAND [options]

${commands.map(({ name, summary }) => `  ${name.padEnd(10)} ${summary}`).join('\n')}

  oncekey COMMAND --help shows its options and examples.

Exit codes: 0 all is well, 1 it is not, 2 the command line cannot be meant.`
}

/** As in package.json; older ones lack what the stores are made of. */
const NODE_MIN = [22, 13] as const

async function main([name = '', ...args]: readonly string[]): Promise<number> {
  const [major = 0, minor = 0] = process.versions.node.split('.').map(Number)
  if (major < NODE_MIN[0] || (major === NODE_MIN[0] && minor < NODE_MIN[1])) {
    console.error(`oncekey needs Node ${NODE_MIN.join('.')} or later; this is ${process.versions.node}.`)
    return EXIT_FAILED
  }
  if (name === '--version' || name === '-v') {
    console.log(version())
    return 0
  }
  if (name === '--help' || name === '-h' || name === 'help') {
    console.log(await help())
    return 0
  }
  const command = Object.hasOwn(COMMANDS, name) ? await COMMANDS[name]?.() : undefined
  if (command === undefined) {
    const all = Object.keys(COMMANDS).join(', ')
    console.error(
      name === ''
        ? `Name a command.\n\n${await help()}`
        : `There is no command ${JSON.stringify(name)}; there are ${all}. See oncekey --help.`,
    )
    return EXIT_MISUSE
  }
  if (args.includes('--help') || args.includes('-h')) {
    console.log(command.help)
    return 0
  }
  try {
    return await command.run(args)
  } catch (error) {
    if (!isForPeople(error)) throw error
    console.error(`oncekey ${name}: ${error.message}`)
    if (error instanceof Misuse) console.error(`See oncekey ${name} --help.`)
    const isMisuse = error instanceof Misuse || ('code' in error && error.code === 'config-invalid')
    return isMisuse ? EXIT_MISUSE : EXIT_FAILED
  }
}

process.exitCode = await main(process.argv.slice(2))
